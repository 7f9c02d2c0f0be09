#include "parts/hosts/transports/local_transport.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <tuple>
#include <utility>

#include "exec/engine/sync.h"
#include "parts/hosts/message_check.h"
#include "support/error.h"
#include "support/random.h"

namespace heteroplace::exec {

namespace {

constexpr int64_t kNotYet = std::numeric_limits<int64_t>::max();

/*! \brief One side of a message from its start on. Guarded by the mutex of its exchange. */
struct Flight {
  const void* source = nullptr;
  void* destination = nullptr;
  int64_t bytes = 0;
  /*! \brief The bytes of a buffered send. */
  std::vector<char> kept;
  /*! \brief From when on it is complete on this side. */
  int64_t done_ns = kNotYet;
  /*! \brief Of a receive: how many bytes were sent. */
  int64_t received = 0;
};

/*! \brief Plane, sender, receiver, tag. */
using MatchKey = std::tuple<Plane, int, int, int64_t>;

/*! \brief What is started on one side only, in the order of the starts. */
struct Unmatched {
  std::deque<std::shared_ptr<Flight>> sends;
  std::deque<std::shared_ptr<Flight>> receives;
};

/*! \brief A message that both sides have started. */
struct Arrival {
  std::shared_ptr<Flight> send;
  std::shared_ptr<Flight> receive;
  int64_t due_ns;
};

/*! \brief What all ranks of a job share. */
class Exchange {
 public:
  Exchange(int num_ranks, const LocalOptions& options)
      : options_(options), random_(options.seed), arrivals_(static_cast<size_t>(num_ranks)) {}

  int num_ranks() const { return static_cast<int>(arrivals_.size()); }

  void Abort(const std::string& reason) {
    std::scoped_lock lock(mutex_);
    if (!is_aborted_) reason_ = reason;
    is_aborted_ = true;
  }

  void CheckNotAborted() {
    std::scoped_lock lock(mutex_);
    CheckNotAbortedLocked();
  }

  std::shared_ptr<Flight> Start(Plane plane, const MessageEnds& ends, const void* source,
                                void* destination) {
    std::scoped_lock lock(mutex_);
    Deliver(ends.rank);
    auto flight = std::make_shared<Flight>();
    flight->source = source;
    flight->destination = destination;
    flight->bytes = ends.bytes;
    if (ends.is_send && options_.is_buffered) {
      const char* begin = static_cast<const char*>(source);
      if (ends.bytes > 0) flight->kept.assign(begin, begin + ends.bytes);
      flight->source = flight->kept.data();
      flight->done_ns = NowNs() + Delay();
    }
    Unmatched& waiting = unmatched_[ends.is_send ? MatchKey(plane, ends.rank, ends.peer, ends.tag)
                                                 : MatchKey(plane, ends.peer, ends.rank, ends.tag)];
    (ends.is_send ? waiting.sends : waiting.receives).push_back(flight);
    if (!waiting.sends.empty() && !waiting.receives.empty()) {
      const int receiver = ends.is_send ? ends.peer : ends.rank;
      arrivals_[static_cast<size_t>(receiver)].push_back(
          {waiting.sends.front(), waiting.receives.front(), NowNs() + Delay()});
      waiting.sends.pop_front();
      waiting.receives.pop_front();
    }
    return flight;
  }

  /*! \brief Whether a message is complete; `ends` says what to compare the sizes with. */
  bool Test(const MessageEnds& ends, const Flight* flight) {
    std::scoped_lock lock(mutex_);
    CheckNotAbortedLocked();
    Deliver(ends.rank);
    if (flight == nullptr) return true;
    if (flight->done_ns == kNotYet || flight->done_ns > NowNs()) return false;
    if (!ends.is_send) CheckReceivedBytes(ends, flight->received);
    return true;
  }

  /*! \brief Forgets a message in flight: nobody touches its bytes afterwards. */
  void GiveUp(const std::shared_ptr<Flight>& flight) {
    std::scoped_lock lock(mutex_);
    if (!flight->kept.empty()) return;  // it has bytes of its own
    for (auto& [order, waiting] : unmatched_) {
      std::erase(waiting.sends, flight);
      std::erase(waiting.receives, flight);
    }
    for (std::vector<Arrival>& arrivals : arrivals_) {
      std::erase_if(arrivals, [&](const Arrival& arrival) {
        if (arrival.receive == flight) arrival.send->done_ns = NowNs();
        return arrival.send == flight || arrival.receive == flight;
      });
    }
  }

 private:
  void CheckNotAbortedLocked() const {
    if (is_aborted_) throw Error(ErrorKind::kExecution, reason_);
  }

  int64_t Delay() {
    return static_cast<int64_t>(random_.Unit() * static_cast<double>(options_.max_delay_ns));
  }

  /*! \brief Copies what has come for a rank. */
  void Deliver(int rank) {
    const int64_t now = NowNs();
    std::erase_if(arrivals_[static_cast<size_t>(rank)], [&](const Arrival& arrival) {
      if (arrival.due_ns > now) return false;
      const int64_t bytes = std::min(arrival.send->bytes, arrival.receive->bytes);
      if (bytes > 0) {
        std::memcpy(arrival.receive->destination, arrival.send->source, static_cast<size_t>(bytes));
      }
      arrival.receive->received = arrival.send->bytes;
      arrival.receive->done_ns = now;
      // News of it takes its time back to the sender.
      if (!options_.is_buffered) arrival.send->done_ns = now + Delay();
      return true;
    });
  }

  const LocalOptions options_;
  std::mutex mutex_;                            // guards all below
  Random random_;                               // of the delays
  std::map<MatchKey, Unmatched> unmatched_;     // what waits for its other side
  std::vector<std::vector<Arrival>> arrivals_;  // [num_ranks] what is on its way to each
  bool is_aborted_ = false;
  std::string reason_;
};

class LocalMessage : public Message {
 public:
  LocalMessage(std::shared_ptr<Exchange> exchange, Plane plane, const MessageEnds& ends,
               const void* source, void* destination)
      : exchange_(std::move(exchange)),
        plane_(plane),
        ends_(ends),
        source_(source),
        destination_(destination) {}

  ~LocalMessage() override {
    if (flight_ != nullptr) exchange_->GiveUp(flight_);
  }

  void Start() override {
    exchange_->CheckNotAborted();
    if (flight_ != nullptr) RefuseSecondStart(ends_);
    flight_ = exchange_->Start(plane_, ends_, source_, destination_);
  }

  bool Test() override {
    if (!exchange_->Test(ends_, flight_.get())) return false;
    flight_ = nullptr;
    return true;
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
  const Plane plane_;
  const MessageEnds ends_;
  const void* const source_;
  void* const destination_;
  std::shared_ptr<Flight> flight_;  // null: not in flight
};

class LocalTransport : public Transport {
 public:
  LocalTransport(std::shared_ptr<Exchange> exchange, int rank)
      : exchange_(std::move(exchange)), rank_(rank) {}

  int rank() const override { return rank_; }
  int num_ranks() const override { return exchange_->num_ranks(); }
  std::string name() const override { return "local"; }

  std::unique_ptr<Message> MakeSend(Plane plane, int peer, int64_t tag, const void* data,
                                    int64_t bytes) override {
    return Make(plane, {rank_, peer, tag, bytes, /*is_send=*/true}, data, nullptr);
  }

  std::unique_ptr<Message> MakeReceive(Plane plane, int peer, int64_t tag, void* data,
                                       int64_t bytes) override {
    return Make(plane, {rank_, peer, tag, bytes, /*is_send=*/false}, nullptr, data);
  }

  void Abort(const std::string& reason) noexcept override {
    try {
      exchange_->Abort(reason);
    } catch (const std::bad_alloc&) {
      // Short enough to need no memory.
      exchange_->Abort(kMemoryIsShort);
    }
  }

 private:
  std::unique_ptr<Message> Make(Plane plane, const MessageEnds& ends, const void* source,
                                void* destination) {
    CheckMessage(ends, num_ranks());
    exchange_->CheckNotAborted();
    return std::make_unique<LocalMessage>(exchange_, plane, ends, source, destination);
  }

  const std::shared_ptr<Exchange> exchange_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeLocalTransports(int num_ranks,
                                                            const LocalOptions& options) {
  const auto exchange = std::make_shared<Exchange>(num_ranks, options);
  std::vector<std::unique_ptr<Transport>> transports;
  transports.reserve(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    transports.push_back(std::make_unique<LocalTransport>(exchange, rank));
  }
  return transports;
}

}  // namespace heteroplace::exec
