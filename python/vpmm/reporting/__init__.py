# SPDX-License-Identifier: Apache-2.0
# vpmm: reports of recordings: what happened, what to change, as a page for a browser or as text.

from __future__ import annotations

from vpmm.reporting.page import write_page
from vpmm.reporting.plain import text_of
from vpmm.reporting.story import Story

__all__ = ["Story", "text_of", "write_page"]
