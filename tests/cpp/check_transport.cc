// One set of tests for all transports: threads of this process, or the ranks that mpiexec started.
//
//   check_transport FOREIGN_MPI.so           local transports, with delays, rendezvous and buffered
//   mpiexec -n 2 check_transport mpi LIB     the MPI library LIB, in each rank
//   check_transport unfit LIB, launcher LIB  processes in which the library is not used
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "mpi_libraries.h"
#include "parcels.h"
#include "parts/hosts/transports/local_transport.h"
#include "parts/hosts/transports/mpi_transport.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::exec;
using namespace heteroplace::test;

namespace {

/*! \brief Where MPI's messages are cut in some cases: far below its limit. */
constexpr int64_t kPartBytes = (1 << 18) + 1;

constexpr Plane kLanes[] = {Plane::kProgram, Plane::kControl};

/*! \brief One rank's part in a case; all ranks draw the same random numbers. */
using Case = void (*)(Transport* transport, Random random);

/*! \brief All pairs of ranks, both ways at once: each size, restarted, in both planes. */
void SizesArriveWhole(Transport* transport, Random random) {
  std::vector<int64_t> sizes = {0, 1, 8, 4096, kPartBytes, kPartBytes + 1, 1 << 20};
  if (random.Below(8) == 0) sizes.push_back(16 << 20);
  for (const int64_t bytes : sizes) {
    std::deque<Parcel> sends;
    std::deque<Parcel> receives;
    const int64_t tag = random.Below(1000);
    for (const Plane plane : kLanes) {
      for (int peer = 0; peer < transport->num_ranks(); ++peer) {
        if (peer == transport->rank()) continue;
        sends.push_back(MakeParcel(transport, plane, peer, tag, bytes, true));
        receives.push_back(MakeParcel(transport, plane, peer, tag, bytes, false));
      }
    }
    for (int round = 0; round < (bytes > 4096 ? 2 : 4); ++round) {
      for (Parcel& parcel : receives) parcel.message->Start();
      for (Parcel& parcel : sends) {
        Fill(&parcel, Pattern(transport->rank(), tag, round, bytes));
        parcel.message->Start();
      }
      for (Parcel& parcel : receives) {
        Finish(parcel.message.get());
        CHECK(parcel.data == Pattern(parcel.peer, tag, round, bytes));
      }
      for (Parcel& parcel : sends) Finish(parcel.message.get());
      CHECK(sends.empty() || sends.front().message->Test());  // it stays complete
    }
  }
}

/*! \brief Many messages of few tags, started in an order of each rank's own among the tags. */
void TagsKeepTheirOrder(Transport* transport, Random random) {
  constexpr int kMessages = 40;
  const int64_t base = random.Below(2) == 0 ? 0 : int64_t{1} << 40;
  const int num_tags = 1 + random.Below(5);
  // [kMessages] of each pair and way; the n-th of a tag is told by n.
  std::vector<int64_t> tags(kMessages);
  for (int64_t& tag : tags) tag = base + random.Below(num_tags);
  std::vector<Parcel> sends;
  std::vector<Parcel> receives;
  for (int peer = 0; peer < transport->num_ranks(); ++peer) {
    if (peer == transport->rank()) continue;
    for (const int64_t tag : tags) {
      sends.push_back(MakeParcel(transport, Plane::kProgram, peer, tag, 24, true));
      receives.push_back(MakeParcel(transport, Plane::kProgram, peer, tag, 24, false));
    }
  }
  // Of one tag always in order: a stable sort by a random key of the tag.
  std::vector<int> keys(static_cast<size_t>(num_tags));
  const auto shuffle = [&](std::vector<Parcel>* parcels, Random* own) {
    for (int& key : keys) key = own->Below(3);
    const auto key = [&](const Parcel& parcel) {
      return keys[static_cast<size_t>(parcel.tag - base)];
    };
    std::stable_sort(parcels->begin(), parcels->end(),
                     [&](const Parcel& a, const Parcel& b) { return key(a) < key(b); });
  };
  Random own(random.Next() + static_cast<uint64_t>(transport->rank()));
  for (int round = 0; round < 10; ++round) {
    std::vector<std::vector<int64_t>> count(static_cast<size_t>(transport->num_ranks()));
    for (auto& per_tag : count) per_tag.assign(static_cast<size_t>(num_tags), 0);
    const auto next = [&](const Parcel& parcel) {
      const auto tag = static_cast<size_t>(parcel.tag - base);
      return count[static_cast<size_t>(parcel.peer)][tag]++ + round * 100;
    };
    shuffle(&sends, &own);
    shuffle(&receives, &own);
    const bool receives_first = own.Below(2) == 0;
    const auto start_receives = [&] {
      for (Parcel& parcel : receives) parcel.message->Start();
    };
    if (receives_first) start_receives();
    for (Parcel& parcel : sends) {
      Fill(&parcel, Pattern(transport->rank(), parcel.tag, next(parcel), 24));
      parcel.message->Start();
    }
    if (!receives_first) start_receives();
    for (auto& per_tag : count) per_tag.assign(static_cast<size_t>(num_tags), 0);
    for (Parcel& parcel : receives) {
      Finish(parcel.message.get());
      CHECK(parcel.data == Pattern(parcel.peer, parcel.tag, next(parcel), 24));
    }
    for (Parcel& parcel : sends) Finish(parcel.message.get());
  }
}

/*! \brief What is sent long before it is expected, large and small, is kept or waits. */
void LateReceivesFindTheirMessages(Transport* transport, Random random) {
  const int64_t sizes[] = {8, 1 << 19};
  const int from = random.Below(transport->num_ranks());
  if (transport->rank() == from) {
    std::vector<Parcel> sends;
    for (int peer = 0; peer < transport->num_ranks(); ++peer) {
      if (peer == from) continue;
      for (const int64_t bytes : sizes) {
        sends.push_back(MakeParcel(transport, Plane::kProgram, peer, bytes, bytes, true));
        Fill(&sends.back(), Pattern(from, bytes, 0, bytes));
        sends.back().message->Start();
      }
    }
    Meet(transport);
    for (Parcel& send : sends) Finish(send.message.get());
    return;
  }
  Meet(transport);
  // In the other order, too: tags differ.
  for (const int64_t bytes : {sizes[1], sizes[0]}) {
    Parcel receive = MakeParcel(transport, Plane::kProgram, from, bytes, bytes, false);
    receive.message->Start();
    Finish(receive.message.get());
    CHECK(receive.data == Pattern(from, bytes, 0, bytes));
  }
}

/*! \brief A receive that is given up takes no message away; a message outlives its transport. */
void ReceivesCanBeGivenUp(Transport* transport, Random) {
  const int peer = transport->rank() ^ 1;
  if (peer < transport->num_ranks()) {
    Parcel given_up = MakeParcel(transport, Plane::kControl, peer, 5, 8, false);
    given_up.message->Start();
    CHECK(!given_up.message->Test());
    given_up.message = nullptr;
  }
  Meet(transport);
  if (peer >= transport->num_ranks()) return;
  Parcel send = MakeParcel(transport, Plane::kControl, peer, 5, 8, true);
  Parcel receive = MakeParcel(transport, Plane::kControl, peer, 5, 8, false);
  Fill(&send, Pattern(transport->rank(), 5, 0, 8));
  send.message->Start();
  receive.message->Start();
  Finish(receive.message.get());
  Finish(send.message.get());
  CHECK(receive.data == Pattern(peer, 5, 0, 8));
}

/*! \brief What cannot be a message is refused with its ends; so is a second start. */
void MisuseIsRefused(Transport* transport, Random) {
  const int rank = transport->rank();
  const int num_ranks = transport->num_ranks();
  char byte = 0;
  for (const int peer : {-1, rank, num_ranks}) {
    const std::string text =
        ErrorOf([&] { transport->MakeSend(Plane::kProgram, peer, 0, &byte, 1); });
    CHECK(Contains(text, "rank " + std::to_string(rank) + ": send of 1 bytes to rank " +
                             std::to_string(peer)));
    CHECK(Contains(text, "ranks, 0 .. " + std::to_string(num_ranks - 1)));
    CHECK(ErrorOf([&] { transport->MakeReceive(Plane::kControl, peer, 0, &byte, 1); }) != "");
  }
  const int peer = (rank + 1) % num_ranks;
  CHECK(ErrorOf([&] { transport->MakeSend(Plane::kProgram, peer, -1, &byte, 1); }) != "");
  CHECK(ErrorOf([&] { transport->MakeReceive(Plane::kProgram, peer, 0, &byte, -1); }) != "");
  auto receive = transport->MakeReceive(Plane::kProgram, peer, 3, &byte, 1);
  receive->Start();
  CHECK(Contains(ErrorOf([&] { receive->Start(); }), "still in flight"));
}

/*! \brief A message of another size is never taken for the one that is expected. */
void OtherSizesAreRefused(Transport* transport, Random random) {
  const int64_t sent = random.Below(2) == 0 ? 16 : 4;
  if (transport->rank() == 0) {
    Parcel send = MakeParcel(transport, Plane::kProgram, 1, 2, sent, true);
    send.message->Start();
    Finish(send.message.get());
  }
  if (transport->rank() == 1) {
    Parcel receive = MakeParcel(transport, Plane::kProgram, 0, 2, 8, false);
    receive.message->Start();
    const std::string text = ErrorOf([&] { Finish(receive.message.get()); });
    CHECK(Contains(text, "rank 1: receive of 8 bytes from rank 0 (tag 2): "));
  }
  Meet(transport);
}

/*! \brief One rank aborts, some in the middle of messages: all see its reason, and only the first.
 */
void AbortEndsAllRanks(Transport* transport, Random random) {
  const int from = random.Below(transport->num_ranks());
  const bool is_large = random.Below(2) == 0;
  const std::string reason = "host 'b', rank " + std::to_string(from) + ": lost \xC3\xA4" +
                             std::string(is_large ? 3000 : 0, 'x');
  const int rank = transport->rank();
  std::vector<Parcel> parcels;
  for (int peer = 0; peer < transport->num_ranks(); ++peer) {
    if (peer == rank) continue;
    parcels.push_back(MakeParcel(transport, Plane::kProgram, peer, 1, 8, false));
    parcels.push_back(MakeParcel(transport, Plane::kControl, peer, 1, 8, false));
    parcels.push_back(MakeParcel(transport, Plane::kProgram, peer, 9, 1 << 18, true));
  }
  std::atomic<bool> is_looking = false;
  std::thread aborter;
  if (rank == from) {
    aborter = std::thread([&] {
      while (!is_looking) std::this_thread::yield();
      transport->Abort(reason);
      transport->Abort("another reason");
    });
  }
  const std::string seen = ErrorOf([&] {
    Meet(transport);  // others may be through, and abort, before this one is
    for (Parcel& parcel : parcels) parcel.message->Start();
    is_looking = true;
    Finish(parcels.front().message.get());
  });
  is_looking = true;
  if (aborter.joinable()) aborter.join();
  CHECK(!seen.empty());
  CHECK_EQ(reason.substr(0, seen.size()), seen);
  CHECK(is_large ? seen.size() > 1000 : seen.size() == reason.size());
  CHECK_EQ(ErrorOf([&] { parcels.back().message->Test(); }), seen);
  CHECK_EQ(ErrorOf([&] { parcels.back().message->Start(); }), seen);
  char byte = 0;
  const int peer = (rank + 1) % transport->num_ranks();
  CHECK_EQ(ErrorOf([&] { transport->MakeSend(Plane::kProgram, peer, 0, &byte, 1); }), seen);
}

/*! \brief A process that was forked is no rank, and leaves those of its parent in peace. */
void ForksAreNoRanks(Transport* transport, Random) {
  const int peer = (transport->rank() + 1) % transport->num_ranks();
  Parcel send = MakeParcel(transport, Plane::kProgram, peer, 1, 8, true);
  const pid_t child = fork();
  if (child == 0) {
    const bool is_refused =
        Contains(ErrorOf([&] { send.message->Start(); }), "was forked from rank") &&
        Contains(ErrorOf([&] { send.message->Test(); }), "was forked from rank");
    transport->Abort("from a child");
    send.message = nullptr;
    _exit(is_refused ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  Meet(transport);
}

struct NamedCase {
  const char* name;
  Case run;
  int num_seeds;
};

constexpr NamedCase kCases[] = {
    {"sizes arrive whole", SizesArriveWhole, 16},
    {"tags keep their order", TagsKeepTheirOrder, 32},
    {"late receives", LateReceivesFindTheirMessages, 16},
    {"receives given up", ReceivesCanBeGivenUp, 8},
    {"misuse", MisuseIsRefused, 8},
    {"other sizes", OtherSizesAreRefused, 16},
    {"abort", AbortEndsAllRanks, 32},
};

void RunLocal(const NamedCase& named) {
  ForSeeds(named.name, named.num_seeds, [&](Random& random) {
    const int num_ranks = 2 + random.Below(3);
    LocalOptions options;
    options.seed = random.Next();
    options.max_delay_ns = random.Below(2) * 200'000;
    options.is_buffered = random.Below(2) == 0;
    const Random shared(random.Next());
    std::vector<std::unique_ptr<Transport>> transports = MakeLocalTransports(num_ranks, options);
    std::vector<std::thread> threads;
    for (const auto& transport : transports) {
      threads.emplace_back([&named, shared, rank = transport.get()] { named.run(rank, shared); });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

void RunMpi(const NamedCase& named, const std::string& library) {
  ForSeeds(named.name, named.num_seeds, [&](Random& random) {
    MpiOptions options;
    options.library = library;
    if (random.Below(2) == 0) options.part_bytes = kPartBytes;
    const std::unique_ptr<Transport> transport = MakeMpiTransport(options);
    CHECK(transport->num_ranks() >= 2);
    named.run(transport.get(), Random(random.Next()));
  });
}

/*! \brief Until its receive is there, a send by rendezvous is not complete. */
void RendezvousWaits() {
  const auto transports = MakeLocalTransports(2, {});
  Parcel send = MakeParcel(transports[0].get(), Plane::kProgram, 1, 0, 8, true);
  Parcel receive = MakeParcel(transports[1].get(), Plane::kProgram, 0, 0, 8, false);
  send.message->Start();
  for (int i = 0; i < 100; ++i) CHECK(!send.message->Test());
  receive.message->Start();
  for (int i = 0; i < 100; ++i) CHECK(!send.message->Test());
  Finish(receive.message.get());  // the calls of the receiver deliver
  CHECK(send.message->Test());
  const auto buffered = MakeLocalTransports(2, {.is_buffered = true});
  send = MakeParcel(buffered[0].get(), Plane::kProgram, 1, 0, 8, true);
  send.message->Start();
  CHECK(send.message->Test());
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2 || argc == 3);
  const std::string_view mode = argv[1];
  if (argc == 2) {
    ForeignLibrariesAreRefused(argv[1]);
    RendezvousWaits();
    for (const NamedCase& named : kCases) RunLocal(named);
    return 0;
  }
  if (mode == "unfit") {
    UnfitProcessesAreRefused(argv[2]);
    return 0;
  }
  if (mode == "launcher") {
    OtherLaunchersAreRefused(argv[2]);
    return 0;
  }
  CHECK(mode == "mpi");
  for (const NamedCase& named : kCases) RunMpi(named, argv[2]);
  RunMpi({"forks", ForksAreNoRanks, 8}, argv[2]);
  // All ranks live, so that MPI can end in spite of what was aborted.
  CHECK_EQ(LoadMpiAbi(argv[2]).Finalize(), 0);
  return 0;
}
