// SPDX-License-Identifier: Apache-2.0
// hunt: the ends of children, and SIGINT and SIGTERM, which end a hunt, are waited for at one
// place.
#pragma once

namespace vpmm::hunt {

void hold_signals();     // before the first child; children hold them, too
void release_signals();  // in a child that leaves SIGINT and SIGTERM to its parent
void wait_for_signal(double seconds);
bool is_stopped();  // SIGINT or SIGTERM was waited for

}  // namespace vpmm::hunt
