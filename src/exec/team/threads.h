// What the threads of an executor ask of the system, each for itself.
#pragma once

#include <string>

#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief Keeps the thread on the core of its queue. \throws Error kExecution if it is not there.
 */
void PinToCore(const Queue& queue);

/*! \brief Lets the thread go wherever the process may: whoever loads may be pinned to one core. */
void GoAnywhere();

/*! \brief Tells debuggers and profilers whose thread it is: "hp cpu.0". */
void NameThread(const std::string& what);

/*!
 * \brief Lets the calling thread, once woken, begin before the turn of another program is over.
 *
 * Since 6.6 Linux lets a running thread finish its turn of some milliseconds before one of equal
 * priority that has been woken: beside a busy program each hand-over would take as long as 50
 * undisturbed ones. Since 6.12 a thread that asks for shorter turns goes first. Its share of the
 * core stays the same. A wish only: older systems ignore it, sandboxes may refuse it, and all
 * works without it.
 */
void AskForShortTurns();

/*! \brief Lets the thread sleep no longer than it says, by a microsecond. */
void AskForExactSleep();

}  // namespace heteroplace::exec
