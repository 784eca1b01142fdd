// SPDX-License-Identifier: Apache-2.0
// emm: memory managers for C++: use them, choose one for a process, write your own. See
// docs/guides/writing-a-manager.md.
#ifndef VPMM_EMM_HPP
#define VPMM_EMM_HPP

#include "vpmm/emm/context.hpp"
#include "vpmm/emm/ipc.hpp"
#include "vpmm/emm/managers.hpp"
#include "vpmm/emm/plugin.hpp"

#endif
