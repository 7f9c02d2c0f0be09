// Messages with bytes that tell which they are, for the tests of transports.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "exec/net/transport.h"
#include "support/error.h"

namespace heteroplace::test {

using exec::Message;
using exec::Plane;
using exec::Transport;

/*! \brief Bytes that tell which message they are of. */
inline std::vector<char> Pattern(int sender, int64_t tag, int64_t round, int64_t bytes) {
  std::vector<char> data(static_cast<size_t>(bytes));
  Random random(static_cast<uint64_t>(sender * 1000003 + tag * 8191 + round));
  uint64_t word = random.Next();
  // By words: sanitizers look at each access.
  for (size_t begin = 0; begin < data.size(); begin += sizeof(word), word += 0x9E3779B97F4A7C15U) {
    std::memcpy(data.data() + begin, &word, std::min(sizeof(word), data.size() - begin));
  }
  return data;
}

/*! \brief Tests one message until it is complete. */
inline void Finish(Message* message) {
  // Ranks may be more than cores: who has waited for long leaves them to others.
  for (int looks = 0; !message->Test(); ++looks) {
    if (looks < 100) std::this_thread::yield();
    if (looks >= 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

/*! \brief The text of the Error that a call throws; "" if it throws none. */
template <typename Call>
std::string ErrorOf(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kExecution);
    return error.what();
  }
  return "";
}

inline bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/*! \brief A message and its bytes. */
struct Parcel {
  int peer;
  int64_t tag;
  std::vector<char> data;
  std::unique_ptr<Message> message;
};

inline Parcel MakeParcel(Transport* transport, Plane plane, int peer, int64_t tag, int64_t bytes,
                         bool is_send) {
  Parcel parcel{peer, tag, std::vector<char>(static_cast<size_t>(bytes)), nullptr};
  parcel.message = is_send ? transport->MakeSend(plane, peer, tag, parcel.data.data(), bytes)
                           : transport->MakeReceive(plane, peer, tag, parcel.data.data(), bytes);
  return parcel;
}

/*! \brief Writes the bytes of a parcel, which stay where they are. */
inline void Fill(Parcel* parcel, const std::vector<char>& bytes) {
  std::copy(bytes.begin(), bytes.end(), parcel->data.begin());
}

/*! \brief Waits until all ranks are here: each tells all others. */
inline void Meet(Transport* transport) {
  std::vector<Parcel> parcels;
  for (int peer = 0; peer < transport->num_ranks(); ++peer) {
    if (peer == transport->rank()) continue;
    for (const bool is_send : {false, true}) {
      parcels.push_back(MakeParcel(transport, Plane::kControl, peer, 1 << 20, 1, is_send));
    }
  }
  for (Parcel& parcel : parcels) parcel.message->Start();
  for (Parcel& parcel : parcels) Finish(parcel.message.get());
}

}  // namespace heteroplace::test
