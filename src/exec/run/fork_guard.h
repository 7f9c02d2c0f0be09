// Objects with threads, told when the process forks: the child has only the thread that forked.
#pragma once

namespace heteroplace::exec {

/*! \brief Something that prepares for a fork of the process. Registered while it lives. */
class ForkAware {
 public:
  ForkAware();
  virtual ~ForkAware();
  ForkAware(const ForkAware&) = delete;
  ForkAware& operator=(const ForkAware&) = delete;

  /*! \brief In the thread that forks: takes all locks that the child will need. */
  virtual void BeforeFork() = 0;
  /*! \brief In the parent and in the child: gives them back. Must not wait for anything. */
  virtual void AfterFork(bool is_child) = 0;
};

}  // namespace heteroplace::exec
