# SPDX-License-Identifier: Apache-2.0
# vpmm: reports of recordings: what happened, what to change, as a page for a browser or as text.

from __future__ import annotations

from vpmm.reporting.compare import comparison_text
from vpmm.reporting.gpus import are_of_one_process, stories_of
from vpmm.reporting.page import page_of, page_of_gpus, page_of_two, write_page
from vpmm.reporting.plain import text_of, text_of_gpus
from vpmm.reporting.story import Story

__all__ = [
    "Story",
    "are_of_one_process",
    "comparison_text",
    "page_of",
    "page_of_gpus",
    "page_of_two",
    "stories_of",
    "text_of",
    "text_of_gpus",
    "write_page",
]
