// SPDX-License-Identifier: Apache-2.0
// What the theme wraps around a wide table scrolls: it takes the keyboard's focus.
document$.subscribe(() => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap")) each.tabIndex = 0;
});
