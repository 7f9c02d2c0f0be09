// Scratch memory: blocks never overlap and keep their content, whatever the order of frees; the
// pool counts right and stops growing.
#include <cstring>
#include <thread>

#include "check.h"
#include "exec/devices/workspace.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

struct Given {
  unsigned char* data;
  int64_t bytes;
  unsigned char mark;
  bool is_freed;
};

int64_t AlignUp(int64_t bytes) { return (std::max<int64_t>(bytes, 1) + 127) / 128 * 128; }

bool Holds(const Given& block) {
  for (int64_t i = 0; i < block.bytes; ++i) {
    if (block.data[i] != block.mark) return false;
  }
  return true;
}

/*! \brief Carries out random allocations and frees, as a stack or out of turn. */
class Player {
 public:
  Player(Random& random, bool is_stack) : random_(random), is_stack_(is_stack) {}

  void Play(exec::WorkspacePool* pool, int num_moves) {
    for (int move = 0; move < num_moves; ++move) {
      if (given_.empty() || random_.Below(2) == 0) {
        Allocate(pool);
      } else {
        Free(pool);
      }
      CheckAll(*pool);
    }
    while (!given_.empty()) Free(pool);
    CHECK_EQ(pool->used_bytes(), 0);
  }

  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  void Allocate(exec::WorkspacePool* pool) {
    const int64_t bytes = random_.Below(3) == 0 ? random_.Below(20000) : random_.Below(300);
    auto* data = static_cast<unsigned char*>(pool->Allocate(static_cast<uint64_t>(bytes)));
    CHECK_EQ(reinterpret_cast<uintptr_t>(data) % 128, uintptr_t{0});
    const auto mark = static_cast<unsigned char>(random_.Below(256));
    std::memset(data, mark, static_cast<size_t>(bytes));
    given_.push_back({data, bytes, mark, false});
  }

  void Free(exec::WorkspacePool* pool) {
    const size_t last = given_.size() - 1;
    Given& block = given_[is_stack_ ? last : random_.Below(static_cast<int>(given_.size()))];
    if (!block.is_freed) {
      CHECK(pool->Free(block.data));
      block.is_freed = true;
    }
    while (!given_.empty() && given_.back().is_freed) given_.pop_back();
  }

  /*! \brief A block that is freed out of turn counts until the ones above are freed. */
  void CheckAll(const exec::WorkspacePool& pool) {
    int64_t height = 0;
    for (const Given& block : given_) {
      height += AlignUp(block.bytes);
      if (!block.is_freed) CHECK(Holds(block));
    }
    peak_bytes_ = std::max(peak_bytes_, height);
    CHECK_EQ(pool.used_bytes(), height);
  }

  Random& random_;
  bool is_stack_;
  std::vector<Given> given_;
  int64_t peak_bytes_ = 0;
};

void BlocksKeepTheirContent(Random& random) {
  const std::unique_ptr<exec::Device> host = exec::MakeCpuDevice();
  exec::WorkspacePool pool(host.get());
  if (random.Below(2) == 0) pool.Reserve(1 + random.Below(30000));
  Player player(random, random.Below(2) == 0);
  player.Play(&pool, 60);
  CHECK_EQ(pool.peak_bytes(), player.peak_bytes());
  CHECK(!pool.Free(&pool));
  // The next block finds room for the greatest need so far, in one buffer.
  pool.Free(pool.Allocate(1));
  CHECK(pool.held_bytes() >= host->HeldBytes(player.peak_bytes()) || player.peak_bytes() == 0);
}

/*! \brief The same moves again need nothing more from the host. */
void GrowsOnce(Random& random) {
  const std::unique_ptr<exec::Device> host = exec::MakeCpuDevice();
  exec::WorkspacePool pool(host.get());
  const auto seed = static_cast<uint64_t>(random.Below(1000));
  for (int round = 0; round < 4; ++round) {
    Random moves(seed);
    Player player(moves, true);
    const int64_t before = pool.held_bytes();
    player.Play(&pool, 40);
    if (round >= 2) CHECK_EQ(pool.held_bytes(), before);
    if (round >= 1) CHECK_EQ(pool.held_bytes(), host->HeldBytes(pool.peak_bytes()));
  }
}

void AReservedPoolTakesNothingMore(Random& random) {
  const std::unique_ptr<exec::Device> host = exec::MakeCpuDevice();
  exec::WorkspacePool measured(host.get()), reserved(host.get());
  const auto seed = static_cast<uint64_t>(random.Below(1000));
  Random first(seed), second(seed);
  Player(first, false).Play(&measured, 50);
  if (measured.peak_bytes() == 0) return;
  reserved.Reserve(measured.peak_bytes());
  Player(second, false).Play(&reserved, 50);
  CHECK_EQ(reserved.held_bytes(), host->HeldBytes(measured.peak_bytes()));
  CHECK_EQ(reserved.touched_bytes(), reserved.held_bytes());
}

void BlocksLeftBehindAreCleared(Random& random) {
  const std::unique_ptr<exec::Device> host = exec::MakeCpuDevice();
  exec::WorkspacePool pool(host.get());
  for (int run = 0; run < 5; ++run) {
    const int count = 1 + random.Below(9);
    for (int i = 0; i < count; ++i) pool.Allocate(1 + static_cast<uint64_t>(random.Below(9000)));
    pool.Clear();
    CHECK_EQ(pool.used_bytes(), 0);
  }
  CHECK(pool.held_bytes() > 0);
  pool.Free(pool.Allocate(1));
  CHECK_EQ(pool.held_bytes(), host->HeldBytes(pool.peak_bytes()));
}

int foreign_blocks = 0;

void* ForeignAlloc(int, int, uint64_t, int, int) {
  ++foreign_blocks;
  return &foreign_blocks;
}

int ForeignFree(int, int, void* data) {
  CHECK(data == &foreign_blocks);
  return --foreign_blocks;
}

/*! \brief Threads have pools of their own; without one, and for other devices, TVM is asked. */
void ThreadsDoNotMeet(Random& random) {
  exec::TvmAbi abi{};
  abi.AllocWorkspace = &ForeignAlloc;
  abi.FreeWorkspace = &ForeignFree;
  exec::SetForeignWorkspace(abi);
  const std::unique_ptr<exec::Device> host = exec::MakeCpuDevice();
  exec::WorkspacePool pools[] = {exec::WorkspacePool(host.get()), exec::WorkspacePool(host.get())};
  std::vector<std::thread> threads;
  for (exec::WorkspacePool& pool : pools) {
    threads.emplace_back([&pool, &abi, seed = static_cast<uint64_t>(random.Below(1000))] {
      exec::SetWorkspacePool(&abi, &pool);
      Random moves(seed);
      for (int round = 0; round < 50; ++round) {
        const int count = 1 + moves.Below(500);
        auto* data = static_cast<int*>(exec::AllocWorkspace(
            exec::kDLCPU, 0, static_cast<uint64_t>(count) * sizeof(int), exec::kDLInt, 32));
        for (int i = 0; i < count; ++i) data[i] = count;
        for (int i = 0; i < count; ++i) CHECK_EQ(data[i], count);
        CHECK_EQ(exec::FreeWorkspace(exec::kDLCPU, 0, data), 0);
      }
      exec::SetWorkspacePool(&abi, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const exec::WorkspacePool& pool : pools)
    CHECK(pool.peak_bytes() > 0 && pool.used_bytes() == 0);
  CHECK_EQ(foreign_blocks, 0);
  void* foreign = exec::AllocWorkspace(exec::kDLCPU, 0, 8, exec::kDLInt, 32);
  CHECK_EQ(foreign_blocks, 1);
  CHECK_EQ(exec::FreeWorkspace(exec::kDLCPU, 0, foreign), 0);
  exec::SetWorkspacePool(&abi, &pools[0]);
  CHECK_EQ(exec::FreeWorkspace(exec::kDLCUDA, 0,
                               exec::AllocWorkspace(exec::kDLCUDA, 0, 8, exec::kDLInt, 32)),
           0);
  exec::SetWorkspacePool(&abi, nullptr);
}

}  // namespace

int main() {
  ForSeeds("content", 200, BlocksKeepTheirContent);
  ForSeeds("growth", 50, GrowsOnce);
  ForSeeds("reserve", 50, AReservedPoolTakesNothingMore);
  ForSeeds("left behind", 20, BlocksLeftBehindAreCleared);
  ForSeeds("threads", 20, ThreadsDoNotMeet);
  return 0;
}
