// Objects with threads, told when the process forks: the child has only the thread that forked.
#pragma once

namespace heteroplace::exec {

/*! \brief Something that prepares for a fork of the process. */
class ForkAware {
 public:
  ForkAware() = default;
  virtual ~ForkAware() = default;
  ForkAware(const ForkAware&) = delete;
  ForkAware& operator=(const ForkAware&) = delete;

  /*! \brief In the thread that forks: takes all locks that the child will need. */
  virtual void BeforeFork() = 0;
  /*! \brief In the parent and in the child: gives them back. Must not wait for anything. */
  virtual void AfterFork(bool is_child) = 0;
};

/*! \brief Tells an object of forks as long as this lives: a member of it, not its base, as all of
 * the object must be there before, and still after. */
class ForkWatch {
 public:
  explicit ForkWatch(ForkAware* member);
  ~ForkWatch();
  ForkWatch(const ForkWatch&) = delete;
  ForkWatch& operator=(const ForkWatch&) = delete;

 private:
  ForkAware* member_;
};

}  // namespace heteroplace::exec
