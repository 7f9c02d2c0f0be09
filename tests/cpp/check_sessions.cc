// A thousand sessions from eight threads: run, forked, read and written, cancelled, dropped at
// work. Arguments: the path of libtvm.so or "", and of the library of kernels.cc.
#include <memory>
#include <thread>

#include "check.h"
#include "exec/engine/executor.h"
#include "random_program.h"
#include "support/error.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

constexpr int kThreads = 8;
constexpr int kSessionsOfThread = 125;
constexpr int kMaxSteps = 6;
/*! \brief Positions of the states in the program. */
constexpr size_t kStateH = 0;
constexpr size_t kStateC = 1;

/*! \brief y = h + x, and then h becomes h + x where it lies; cn = c + x, on another queue. */
exec::ExecutorSource Source(const std::vector<int>& cores) {
  exec::ExecutorSource source = SourceOf("", 3);
  const bool has_two = cores.size() > 1;
  source.program_text =
      "heteroplace-program 1\nspace 0 ram 1 0 512\nqueue 0 q0 cpu 1 0 0 " +
      std::to_string(cores[0]) + "\nqueue 1 q1 " +
      (has_two ? "cpu 1 0 0 " + std::to_string(cores[1]) : std::string("fake 1 0 0 0")) +
      "\ntensor 0 0 external - 2 32 64\ntensor 1 0 session 0 2 32 64\n"
      "tensor 2 0 session 256 2 32 64\ntensor 3 0 arena 0 2 32 64\ntensor 4 0 arena 256 2 32 64\n"
      "input x 0\ninput h 1\ninput c 2\noutput y 3\noutput hn 1\noutput cn 4\n"
      "state h hn\nstate c cn\nkernel 0 add\n"
      "call 0 0 0 1 1,0,3 -\ncall 0 1 0 1 1,0,1 -\ncall 1 2 0 1 2,0,4 -\nend\n";
  return source;
}

/*! \brief A session and what it must hold. */
class Sequence {
 public:
  explicit Sequence(exec::Executor* executor)
      : executor_(executor), session_(executor->NewSession()) {}

  void Run(float x) {
    const std::unique_ptr<exec::Request> request = Submit(x);
    request->Finish();
    Vector y(kExtent);
    request->GetOutput("y", y.data());
    CHECK_EQ(y, Vector(kExtent, h_ + x));
    h_ += x;
    c_ += x;
  }

  /*! \brief What was written in place may be there or not; all else is as before. */
  void Cancel(float x) {
    const std::unique_ptr<exec::Request> request = Submit(x);
    request->Cancel("a test");
    try {
      request->Finish();
      h_ += x;
      c_ += x;
    } catch (const Error&) {
      Vector h(kExtent);
      session_->Read(kStateH, h.data());
      CHECK(h == Vector(kExtent, h_) || h == Vector(kExtent, h_ + x));
      h.assign(kExtent, h_);
      session_->Write(kStateH, h.data());
    }
  }

  /*! \brief Leaves a request at work, and begins anew. */
  void Drop(float x) {
    Submit(x).reset();
    session_ = executor_->NewSession();
    h_ = c_ = 0;
  }

  void Clear() {
    session_->Clear();
    h_ = c_ = 0;
  }

  Sequence Fork() const {
    Sequence other(executor_);
    other.session_->CopyFrom(*session_);
    other.h_ = h_;
    other.c_ = c_;
    return other;
  }

  void Check() const {
    Vector value(kExtent);
    session_->Read(kStateH, value.data());
    CHECK_EQ(value, Vector(kExtent, h_));
    session_->Read(kStateC, value.data());
    CHECK_EQ(value, Vector(kExtent, c_));
  }

 private:
  std::unique_ptr<exec::Request> Submit(float x) {
    std::unique_ptr<exec::Request> request = executor_->Begin({}, session_);
    const Vector value(kExtent, x);
    request->SetInput("x", {exec::kDLFloat, 32, 1}, {kExtent}, value.data());
    request->Submit();
    return request;
  }

  exec::Executor* executor_;
  std::shared_ptr<exec::Session> session_;
  float h_ = 0;
  float c_ = 0;
};

void UseSessions(exec::Executor* executor, uint64_t seed) {
  Random random(seed);
  for (int number = 0; number < kSessionsOfThread; ++number) {
    Sequence sequence(executor);
    for (int step = random.Below(kMaxSteps); step >= 0; --step) {
      const auto x = static_cast<float>(1 + random.Below(9));
      switch (random.Below(6)) {
        case 0:
          sequence.Cancel(x);
          break;
        case 1:
          sequence.Drop(x);
          break;
        case 2:
          sequence.Clear();
          break;
        case 3: {
          Sequence other = sequence.Fork();
          other.Run(x);
          other.Check();
          break;
        }
        default:
          sequence.Run(x);
      }
      sequence.Check();
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3);
  libtvm_path = arguments[1];
  library_path = arguments[2];
  exec::Executor executor(Source(heteroplace::test::Cores()));
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < kThreads; ++seed) {
    threads.emplace_back([&executor, seed] { UseSessions(&executor, seed); });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
