// Ordered messages between the ranks of a job: what the executor asks of MPI, or of a stand-in.
//
// A transport moves bytes and knows nothing of programs. A message is persistent: it is made once
// for its bytes and peer, and started again in every request.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace heteroplace::exec {

/*!
 * \brief One message to or from a peer, to be started any number of times.
 *
 * `Start`, then `Test` until it is true, then `Start` again. In between the bytes belong to the
 * message: those of a send are not written, those of a receive neither read nor written. Both
 * throw Error kExecution, naming ranks and cause; after an error the message cannot be used.
 * Destroying one in flight gives it up: a receive at any time, a send only after `Abort`.
 */
class Message {
 public:
  virtual ~Message() = default;

  /*! \brief Begins the message; does not wait. */
  virtual void Start() = 0;

  /*!
   * \brief Whether it is complete on this side; does not wait. Makes progress with all messages.
   *
   * A send is complete when its bytes may be written again, a receive when they may be read.
   */
  virtual bool Test() = 0;
};

/*! \brief Orders that know nothing of each other: tags of one never match those of the other. */
enum class Plane { kProgram, kControl };

/*!
 * \brief The messages of one rank.
 *
 * Used by one thread at a time, the one that holds `mutex`, also for its messages and for
 * destruction, but for `Abort`. Messages of one plane, pair of ranks and tag match in the order of
 * `Start`, on either side. Sizes must be equal on both sides. Messages may outlive their transport.
 * It shares itself: what holds it in C++ then keeps no object of Python, which a child would miss.
 */
class Transport : public std::enable_shared_from_this<Transport> {
 public:
  virtual ~Transport() = default;

  /*! \brief Which one of the ranks this is, from 0. */
  virtual int rank() const = 0;

  /*! \brief How many ranks the job has. */
  virtual int num_ranks() const = 0;

  /*! \brief What moves the bytes, for reports: "MPICH 5.0.2", "local". */
  virtual std::string name() const = 0;

  /*!
   * \brief Makes a message to another rank; nothing is sent before `Start`.
   * \param tag any number from 0; MPI sees it modulo its limit, which the order allows.
   * \param data lives as long as the message; any address if `bytes` is 0.
   * \param bytes any number from 0.
   * \throws Error kExecution: no such peer, or what MPI says.
   */
  virtual std::unique_ptr<Message> MakeSend(Plane plane, int peer, int64_t tag, const void* data,
                                            int64_t bytes) = 0;

  /*! \brief The other side of `MakeSend`: a message from another rank into `data`. */
  virtual std::unique_ptr<Message> MakeReceive(Plane plane, int peer, int64_t tag, void* data,
                                               int64_t bytes) = 0;

  /*!
   * \brief Ends all messages on all ranks; any thread, also while another uses the transport.
   *
   * Afterwards `Start`, `Test` and the making of messages throw Error kExecution with the reason,
   * on every rank that lives: here at once, on others as soon as they look. The first reason stays;
   * of a long one others may see only the first 1,000 bytes or so.
   */
  virtual void Abort(const std::string& reason) noexcept = 0;

  /*! \brief The same for something of another rank that did not come, which may be gone. */
  virtual void AbortWaiting(const std::string& reason) noexcept { Abort(reason); }

  /*! \brief The lock of all that use it: nobody waits for a message while holding it. */
  std::mutex& mutex() { return mutex_; }

 private:
  std::mutex mutex_;
};

}  // namespace heteroplace::exec
