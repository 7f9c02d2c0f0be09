#include "exec/net/ping_pong.h"

#include <algorithm>
#include <functional>
#include <mutex>

#include "exec/net/mpi_process.h"
#include "exec/run/sync.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Round trips of one turn: enough for a clock, few enough that turns alternate often. */
int NumTrips(int64_t bytes) { return bytes <= (1 << 16) ? 500 : bytes <= (1 << 20) ? 20 : 3; }

void SpinUntilDone(Message* message) {
  while (!message->Test()) {
  }
}

double Median(std::vector<double>* samples) {
  const auto middle = samples->begin() + static_cast<std::ptrdiff_t>(samples->size() / 2);
  std::nth_element(samples->begin(), middle, samples->end());
  return *middle;
}

/*! \brief One of the two ranks, with the bytes that all three ways send. */
class Pair {
 public:
  Pair(const MpiOptions& options, Transport* transport, int64_t bytes)
      : process_(MpiProcess::Get(options.library, options.communicator.has_value())),
        communicator_(options.communicator.value_or(process_.abi().comm_world)),
        transport_(transport),
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
    const int trips = NumTrips(bytes());
    const int64_t start_ns = NowNs();
    for (int trip = 0; trip < trips; ++trip) {
      prepare();
      if (is_first_) send();
      receive();
      if (!is_first_) send();
    }
    return static_cast<double>(NowNs() - start_ns) / (2.0 * trips);
  }

  double OursNs() {
    const auto send = transport_->MakeSend(Lane::kProgram, peer_, 0, outgoing_.data(), bytes());
    const auto receive =
        transport_->MakeReceive(Lane::kProgram, peer_, 0, incoming_.data(), bytes());
    return HalfTripNs([&] { receive->Start(); },
                      [&] {
                        send->Start();
                        SpinUntilDone(send.get());
                      },
                      [&] { SpinUntilDone(receive.get()); });
  }

  double SendRecvNs() {
    std::lock_guard lock(process_.mutex());
    const MpiAbi& abi = process_.abi();
    const int count = static_cast<int>(bytes());
    MpiStatus status;
    return HalfTripNs(
        [] {},
        [&] {
          abi.Check(abi.Send(outgoing_.data(), count, abi.byte, peer_, 0, communicator_),
                    "MPI_Send");
        },
        [&] {
          abi.Check(abi.Recv(incoming_.data(), count, abi.byte, peer_, 0, communicator_, &status),
                    "MPI_Recv");
        });
  }

  double PersistentNs() {
    std::lock_guard lock(process_.mutex());
    const MpiAbi& abi = process_.abi();
    const int count = static_cast<int>(bytes());
    MpiStatus status;
    MpiHandle send = 0;
    MpiHandle receive = 0;
    abi.Check(abi.Send_init(outgoing_.data(), count, abi.byte, peer_, 1, communicator_, &send),
              "MPI_Send_init");
    abi.Check(abi.Recv_init(incoming_.data(), count, abi.byte, peer_, 1, communicator_, &receive),
              "MPI_Recv_init");
    const double half_trip_ns = HalfTripNs([&] { abi.Start(&receive); },
                                           [&] {
                                             abi.Start(&send);
                                             abi.Wait(&send, &status);
                                           },
                                           [&] { abi.Wait(&receive, &status); });
    abi.Request_free(&send);
    abi.Request_free(&receive);
    return half_trip_ns;
  }

  MpiProcess& process_;
  const MpiHandle communicator_;
  Transport* const transport_;
  const bool is_first_;
  const int peer_;
  std::vector<char> outgoing_;
  std::vector<char> incoming_;
};

}  // namespace

std::vector<PingPong> MeasurePingPong(const MpiOptions& options, const std::vector<int64_t>& sizes,
                                      int num_rounds) {
  const std::unique_ptr<Transport> transport = MakeMpiTransport(options);
  if (transport->num_ranks() < 2) {
    throw Error(ErrorKind::kExecution,
                "messages need two ranks, here is 1; start it by mpiexec -n 2");
  }
  std::vector<PingPong> results;
  for (const int64_t bytes : sizes) {
    if (transport->rank() > 1) {
      results.push_back({.bytes = bytes});
      continue;
    }
    results.push_back(Pair(options, transport.get(), bytes).Measure(num_rounds));
  }
  return results;
}

}  // namespace heteroplace::exec
