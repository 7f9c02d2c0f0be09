// What the transport costs: its messages against the same functions of MPI in a bare loop.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "exec/net/mpi_transport.h"
#include "exec/run/sync.h"

namespace heteroplace::test {

using namespace exec;

/*! \brief One size; medians over the rounds of half a round trip, in ns. 0 on other ranks than 0.
 */
struct PingPong {
  int64_t bytes = 0;
  /*! \brief Messages of the transport, the receive posted before the send. */
  double ours_ns = 0;
  /*! \brief MPI_Send and MPI_Recv. */
  double send_recv_ns = 0;
  /*! \brief MPI_Start and MPI_Wait of persistent requests, in the same order as ours. */
  double persistent_ns = 0;
};

/*! \brief Functions that the transport does not use. */
struct BareMpi {
  explicit BareMpi(const std::string& library) {
    void* const handle = dlopen(library.c_str(), RTLD_NOW);
    CHECK(handle != nullptr);
    Wait = reinterpret_cast<decltype(Wait)>(dlsym(handle, "MPI_Wait"));
    Send = reinterpret_cast<decltype(Send)>(dlsym(handle, "MPI_Send"));
    Recv = reinterpret_cast<decltype(Recv)>(dlsym(handle, "MPI_Recv"));
    CHECK(Wait != nullptr && Send != nullptr && Recv != nullptr);
  }
  int (*Wait)(MpiHandle* request, MpiStatus* status);
  int (*Send)(const void* data, int count, MpiHandle type, int peer, int tag,
              MpiHandle communicator);
  int (*Recv)(void* data, int count, MpiHandle type, int peer, int tag, MpiHandle communicator,
              MpiStatus* status);
};

/*! \brief Round trips of one turn: enough for a clock, few enough that turns alternate often. */
inline int NumTrips(int64_t bytes) {
  return bytes <= (1 << 16) ? 500 : bytes <= (1 << 20) ? 20 : 3;
}

inline void SpinUntilDone(Message* message) {
  while (!message->Test()) {
  }
}

inline double Median(std::vector<double>* samples) {
  const auto middle = samples->begin() + static_cast<std::ptrdiff_t>(samples->size() / 2);
  std::nth_element(samples->begin(), middle, samples->end());
  return *middle;
}

/*! \brief One of the two ranks, with the bytes that all three ways send. */
class Pair {
 public:
  Pair(const MpiOptions& options, Transport* transport, int64_t bytes, int num_trips)
      : abi_(LoadMpiAbi(options.library)),
        bare_(options.library),
        communicator_(abi_.comm_world),
        transport_(transport),
        num_trips_(num_trips),
        is_first_(transport->rank() == 0),
        peer_(is_first_ ? 1 : 0),
        outgoing_(static_cast<size_t>(bytes), 'x'),
        incoming_(static_cast<size_t>(bytes)) {}

  PingPong Measure(int num_rounds) {
    std::vector<double> ours;
    std::vector<double> send_recv;
    std::vector<double> persistent;
    for (int round = -1; round < num_rounds; ++round) {
      const double times[] = {OursNs(), SendRecvNs(), PersistentNs()};
      if (round < 0) continue;  // pages and connections are made at first
      ours.push_back(times[0]);
      send_recv.push_back(times[1]);
      persistent.push_back(times[2]);
    }
    PingPong result;
    result.bytes = bytes();
    if (!is_first_) return result;
    result.ours_ns = Median(&ours);
    result.send_recv_ns = Median(&send_recv);
    result.persistent_ns = Median(&persistent);
    return result;
  }

 private:
  int64_t bytes() const { return static_cast<int64_t>(outgoing_.size()); }

  /*! \brief Half a round trip; `send` returns early, `receive` when the message is there. */
  double HalfTripNs(const std::function<void()>& prepare, const std::function<void()>& send,
                    const std::function<void()>& receive) const {
    const int64_t start_ns = NowNs();
    for (int trip = 0; trip < num_trips_; ++trip) {
      prepare();
      if (is_first_) send();
      receive();
      if (!is_first_) send();
    }
    return static_cast<double>(NowNs() - start_ns) / (2.0 * num_trips_);
  }

  double OursNs() {
    const auto send = transport_->MakeSend(Plane::kProgram, peer_, 0, outgoing_.data(), bytes());
    const auto receive =
        transport_->MakeReceive(Plane::kProgram, peer_, 0, incoming_.data(), bytes());
    return HalfTripNs([&] { receive->Start(); },
                      [&] {
                        send->Start();
                        SpinUntilDone(send.get());
                      },
                      [&] { SpinUntilDone(receive.get()); });
  }

  double SendRecvNs() {
    const int count = static_cast<int>(bytes());
    MpiStatus status;
    return HalfTripNs(
        [] {},
        [&] {
          abi_.Check(bare_.Send(outgoing_.data(), count, abi_.byte, peer_, 0, communicator_),
                     "MPI_Send");
        },
        [&] {
          abi_.Check(
              bare_.Recv(incoming_.data(), count, abi_.byte, peer_, 0, communicator_, &status),
              "MPI_Recv");
        });
  }

  double PersistentNs() {
    const int count = static_cast<int>(bytes());
    MpiStatus status;
    MpiHandle send = 0;
    MpiHandle receive = 0;
    abi_.Check(abi_.Send_init(outgoing_.data(), count, abi_.byte, peer_, 1, communicator_, &send),
               "MPI_Send_init");
    abi_.Check(
        abi_.Recv_init(incoming_.data(), count, abi_.byte, peer_, 1, communicator_, &receive),
        "MPI_Recv_init");
    const double half_trip_ns = HalfTripNs([&] { abi_.Start(&receive); },
                                           [&] {
                                             abi_.Start(&send);
                                             bare_.Wait(&send, &status);
                                           },
                                           [&] { bare_.Wait(&receive, &status); });
    abi_.Request_free(&send);
    abi_.Request_free(&receive);
    return half_trip_ns;
  }

  const MpiAbi abi_;
  const BareMpi bare_;
  const MpiHandle communicator_;
  Transport* const transport_;
  const int num_trips_;
  const bool is_first_;
  const int peer_;
  std::vector<char> outgoing_;
  std::vector<char> incoming_;
};

/*!
 * \brief Sends bytes to and fro between the ranks 0 and 1, in the three ways by turns. All ranks
 * call it.
 * \param sizes below 2^31.
 * \param max_trips of one way in a round.
 * \param num_rounds from 1; each takes some milliseconds per size and way.
 */
inline std::vector<PingPong> MeasurePingPong(const MpiOptions& options,
                                             const std::vector<int64_t>& sizes, int num_rounds,
                                             int max_trips) {
  const std::unique_ptr<Transport> transport = MakeMpiTransport(options);
  CHECK(transport->num_ranks() >= 2);
  std::vector<PingPong> results;
  for (const int64_t bytes : sizes) {
    if (transport->rank() > 1) {
      results.push_back({.bytes = bytes});
      continue;
    }
    results.push_back(Pair(options, transport.get(), bytes, std::min(NumTrips(bytes), max_trips))
                          .Measure(num_rounds));
  }
  return results;
}

}  // namespace heteroplace::test
