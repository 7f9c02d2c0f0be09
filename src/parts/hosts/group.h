// The ranks of a job as one group: who is there, that all have the same, and that all live.
//
// Fail-stop: after the first failure of any rank nothing goes on anywhere. Each rank that lives
// throws the same text, which names rank, host, cause and the last step that was finished; one of
// them tells it. Deaths on the same machine are seen at once (transports/rank_page.h), others by
// silence.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "exec/net/transport.h"
#include "exec/requests/limit.h"
#include "parts/hosts/transports/rank_page.h"
#include "parts/hosts/transports/shared_transport.h"

namespace heteroplace::exec {

/*! \brief Tags of messages that control the job; each is an order of its own per pair of ranks. */
enum class ControlTag : int64_t { kBytes, kLength, kBeat, kOrder, kReplyLength, kReply, kClock };

/*! \brief For how long a rank may be silent: not so short that nobody could hear it, nor too long
 * for the clock's numbers. */
inline constexpr double kMinSilenceSeconds = 1e-3;
inline constexpr double kMaxSilenceSeconds = 1e9;

/*! \brief What a group is told at its making. */
struct GroupOptions {
  /*! \brief A rank that is silent for longer has failed. */
  int64_t silence_ns = 30'000'000'000;
  /*! \brief Told why the job has failed, once on each rank, by any thread; must not throw.
   * `is_first`: of this rank all others have it, or it is the one to show it to the user. */
  std::function<void(const std::string& text, bool is_first)> tell;
};

/*! \brief Something that all ranks must have alike: what it is, and what this rank has. */
using Term = std::pair<std::string, std::string>;

/*! \brief One rank's part. Any thread may call it, but one at a time what says "all ranks". */
class Group : public std::enable_shared_from_this<Group> {
 public:
  /*! \brief How a text begins that says already whose failure it is. */
  static constexpr std::string_view kRankWord = "rank ";

  /*! \brief Meets the others; all ranks. \throws Error kExecution: one fails meanwhile; and what
   * the limit's hook throws. */
  static std::shared_ptr<Group> Meet(std::shared_ptr<Transport> transport, GroupOptions options,
                                     const Limit& limit);
  /*! \brief Leaves; before `End` that is a failure of the job. */
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }
  /*! \brief What moves the bytes: "MPICH 5.0.2". */
  const std::string& transport_name() const { return transport_name_; }
  /*! \brief Whether a rank is on this machine, as far as can be seen. */
  bool IsHere(int rank) const;
  /*! \brief "rank 1 (host 'b' on machine-7)". */
  std::string NameOf(int rank) const;

  /*! \brief Each rank's text, by rank; all ranks. \throws as Meet. */
  std::vector<std::string> Exchange(const std::string& own, const Limit& limit);

  /*!
   * \brief Goes on only if every rank has the same terms and no fault; all ranks.
   * \param fault what this rank cannot do; "": nothing.
   * \throws Error kExecution on all ranks: who has a fault or differs, and in what.
   */
  void Agree(const std::vector<Term>& terms, const std::string& fault, const Limit& limit);

  /*! \brief Fails with what every rank finds at this place. \throws Error kExecution. */
  [[noreturn]] void FailAlike(const std::string& text);

  /*! \brief Names the hosts, and says which rank runs each: order[r] is the host of rank r. */
  void SetHosts(std::vector<std::string> hosts, std::vector<int> order);
  /*! \brief The transport for the programs of the hosts. After SetHosts. */
  std::shared_ptr<Transport> HostTransport();
  /*! \brief The host that this rank runs. */
  int host() const { return order_[static_cast<size_t>(rank_)]; }
  int RankOf(int host) const;

  /*! \brief What the beats tell others of; null from the moment it returns on. */
  void SetStatus(std::function<StepReached()> status);

  /*! \brief Ends the job on all ranks; the first text stays. \param text begins with NameOf the
   * rank that failed, or gets this rank's. Any thread. */
  void Fail(const std::string& text) noexcept;
  /*! \brief The same where something of another rank did not come, for whatever reason: one that is
   * silent is named instead. */
  void FailWaiting(const std::string& text) noexcept;
  /*! \brief The same for the exception that is being handled: an Error is of waiting. */
  void FailAsThrown() noexcept;
  bool HasFailed() const { return has_failed_.load(); }
  /*! \brief Whether this process is a child of the rank: no rank itself, it neither tells nor gives
   * back anything. */
  bool IsForked() const { return transport_->IsForked(); }
  /*! \brief The text; "" while nothing has failed. */
  std::string failure() const;
  /*! \throws Error kExecution if the job has failed. */
  void CheckAlive() const;
  /*! \brief From now on this rank may leave. */
  void End();

  /*! \brief Bytes to or from a rank, of any number; other side: the opposite. \throws as Meet. */
  void Send(int peer, ControlTag tag, const std::string& bytes, const Limit& limit);
  std::string Receive(int peer, ControlTag tag, const Limit& limit);
  /*! \brief A message of control whose bytes live as long as it does. */
  std::unique_ptr<Message> MakeSend(int peer, ControlTag tag, const void* data, int64_t bytes);
  std::unique_ptr<Message> MakeReceive(int peer, ControlTag tag, void* data, int64_t bytes);
  /*! \brief Starts messages and waits for them; whatever that throws ends the job, as a send may be
   * given up only where nothing goes on. */
  void Complete(const std::vector<std::unique_ptr<Message>>& messages, const Limit& limit);
  /*! \brief Looks until `is_done()`. \throws as Meet; Error kExecution at the limit. */
  void Await(const std::function<bool()>& is_done, int64_t spin_ns, const Limit& limit);

 private:
  struct Beat {
    int64_t request;
    int64_t step;
    int64_t has_left;
  };

  /*! \brief Another rank. */
  struct Peer {
    std::string machine;
    std::unique_ptr<OtherPage> page;  // null: on another machine, or not to be looked into
    Beat to = {}, from = {};
    std::unique_ptr<Message> send, receive;
    bool is_sending = false;
    /*! \brief Its last beat was received. */
    bool is_silent = false;
    /*! \brief It died without one, and the job was over: nobody waits for it. */
    bool is_gone = false;
    std::atomic<int64_t> heard_ns{0};  // NowNs of the last beat
    std::atomic<int64_t> request{-1}, step{-1};
    std::atomic<bool> has_left{false};
  };

  Group(std::shared_ptr<Transport> transport, GroupOptions options);
  void MeetOthers(const Limit& limit);
  void Watch();
  void ExchangeBeats();
  void AwaitMeeting();
  void BeatOnce();
  void HearFrom(Peer* peer);
  void LookAtPages();
  void LookForSilence();
  void ForgetDead();
  bool IsOver() const;
  std::string WithoutHost(const std::string& text) const;
  std::string TextOf(int rank, const std::string& cause) const;
  std::string TextOfFallen() const;
  std::string TextOfSilent(int64_t silence_ns) const;
  void FailOf(const std::string& text, bool is_waiting) noexcept;
  void Keep(const std::string& text) noexcept;
  int TellerOf(const std::string& text) const;
  bool IsGone(int rank) const;
  void AwaitTeller();
  std::string LastStep(const StepReached& reached) const;
  std::string LastOwnStep();

  const GroupOptions options_;
  std::shared_ptr<LockedTransport> transport_;
  int rank_ = 0;
  int num_ranks_ = 0;
  std::string transport_name_;
  OwnPage own_page_;
  // [num_ranks]; after Meet constant, but for what is atomic and what the thread of beats writes.
  std::vector<Peer> peers_;
  int64_t last_beat_ns_ = 0;  // of the thread of beats

  mutable std::mutex names_mutex_;
  std::vector<std::string> hosts_;  // guarded by names_mutex_
  std::vector<int> order_;          // [num_ranks]; written once, by SetHosts

  std::mutex status_mutex_;
  std::function<StepReached()> status_;  // guarded by status_mutex_

  mutable std::mutex failure_mutex_;
  std::string failure_;               // guarded by failure_mutex_
  std::atomic<int> teller_{0};        // of the failure
  std::atomic<bool> is_held_{false};  // the page's word is
  std::atomic<bool> has_met_{false};  // the peers are complete
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> has_ended_{false};
  std::atomic<bool> is_leaving_{false};
  std::atomic<int64_t> leave_ns_{0};           // until when to wait for goodbyes, of NowNs
  std::atomic<bool> has_said_goodbye_{false};  // the thread of beats needs no other rank any more
  std::thread watcher_;                        // of the pages: it never calls MPI
  std::thread beater_;
};

}  // namespace heteroplace::exec
