# SPDX-License-Identifier: Apache-2.0
"""More PyTorch programs of the benchmark, in the manner of programs.py: memory that lives for many steps beside sizes
that do not come back, models that are dropped, volumes, and large tables with sparse gradients.

The sizes of `chat` and `sweep` depend on the numbers of all steps so far, since requests and models last for some.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as f
from models import Encoder, SegmentationUnet, Writer
from programs import Machine, Step, prediction_loss, sizes_of, train
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

Cache = list[tuple[Tensor, Tensor]]  # keys and values of each layer, one row for each text or beam


@dataclass(eq=False)
class Answer:
    """What is being written: every text of a request has so many beams."""

    cache: Cache
    words: Tensor  # the last of each beam
    scores: Tensor  # of texts and beams
    left: int  # words to come


def attend_to_any_length() -> None:
    """Leaves attention to kernels that need no plan for each new shape, as cuDNN's do, which PyTorch would prefer."""
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)


def chat(machine: Machine) -> Step:
    """Beam search on one stream: requests come, write some words a step in turn, and end; users come back to texts.

    The caches grow by torch.cat with every word, and beams that are overtaken are replaced by copies of others. When a
    request ends, the cache of its best beams waits for the next question about the same texts.
    """
    attend_to_any_length()
    beams, at_once, kept, longest = 4, 4, 8, machine.length(4096)
    words = machine.words(32_000)
    model = Writer(words, machine.width(2048, 128), longest, layers=12).to(machine.device, torch.bfloat16).eval()
    answers: list[Answer] = []
    waiting: list[Cache] = []

    def rows_of(cache: Cache, rows: Tensor) -> Cache:
        return [(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in cache]

    def choose(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From scores of texts, beams and words: the best scores, the rows that they continue, and with which word."""
        texts, before, _ = scores.shape
        best, places = scores.flatten(1).topk(beams)
        firsts = torch.arange(0, texts * before, before, device=machine.device)
        rows = firsts[:, None] + places // words
        return best, rows.flatten(), (places % words).view(-1, 1)

    def begin(rng: random.Random) -> Answer:
        old = waiting.pop(rng.randrange(len(waiting))) if waiting and rng.random() < 0.4 else None
        cache = old or model.empty_cache(machine.count(rng.randrange(2, 8)))
        question = machine.length(rng.randrange(200, 2000))
        text = torch.randint(0, words, (len(cache[0][0]), question), device=machine.device)
        logits, cache = model(text, cache)
        scores, rows, last = choose(logits.log_softmax(-1)[:, None])
        return Answer(rows_of(cache, rows), last, scores, rng.randrange(8, 48))

    def write(answer: Answer) -> None:
        logits, cache = model(answer.words, answer.cache)
        scores = answer.scores[:, :, None] + logits.log_softmax(-1).unflatten(0, (-1, beams))
        answer.scores, rows, answer.words = choose(scores)
        answer.cache = rows_of(cache, rows)
        answer.left -= 1

    def end(answer: Answer) -> None:
        answers.remove(answer)
        if answer.cache[0][0].shape[2] < longest // 2:
            firsts = torch.arange(0, answer.scores.numel(), beams, device=machine.device)
            waiting.append(rows_of(answer.cache, firsts + answer.scores.argmax(1)))
            del waiting[:-kept]

    def work(rng: random.Random) -> Tensor:
        while not answers or (len(answers) < at_once and rng.random() < 0.7):
            answers.append(begin(rng))
        total = torch.zeros((), device=machine.device)
        for answer in list(answers):
            for _ in range(min(6, answer.left)):
                write(answer)
            total += answer.scores.mean()
            if answer.left == 0:
                end(answer)
        return total

    def step(number: int) -> Tensor:
        with torch.no_grad():
            return work(sizes_of(number))

    return step


def volumes(machine: Machine) -> Step:
    """A 3D U-Net segments crops of many shapes, two or three for an update; every fourth step scans a volume."""
    classes, deepest = 14, 8

    def side(on_gpu: int) -> int:
        return max(2 * deepest, machine.length(on_gpu) // deepest * deepest)

    model = SegmentationUnet([machine.width(each, 8) for each in (32, 64, 128, 256)], classes).to(machine.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.99, nesterov=True)

    def turned(volume: Tensor, turns: Tensor, mode: str) -> Tensor:
        grid = f.affine_grid(turns, list(volume.shape), align_corners=False)
        return f.grid_sample(volume, grid, mode, "border", align_corners=False)

    def loss_of(shape: list[int]) -> Tensor:
        batch = machine.count(2)
        image = torch.randn(batch, 1, *shape, device=machine.device)
        label = torch.randint(0, classes, image.shape, device=machine.device)
        turns = torch.eye(3, 4, device=machine.device) + 0.1 * torch.randn(batch, 3, 4, device=machine.device)
        image, label = turned(image, turns, "bilinear"), turned(label.float(), turns, "nearest").long().squeeze(1)
        with machine.autocast():
            logits = model(image)
        shares, truth = logits.float().softmax(1), f.one_hot(label, classes).movedim(-1, 1).float()
        overlap, sizes = (shares * truth).sum((2, 3, 4)), (shares + truth).sum((2, 3, 4))
        return f.cross_entropy(logits.float(), label) + 1 - (2 * overlap / (sizes + 1)).mean()

    def windows(length: int, window: int) -> Iterator[slice]:
        """Half of each window is in the next one, too; the last one ends where the volume does."""
        for begin in range(0, length - window // 2, window // 2):
            yield slice(min(begin, length - window), min(begin, length - window) + window)

    def scan(shape: list[int], window: int) -> Tensor:
        """The share of voxels that belong to the first class."""
        with torch.no_grad():
            volume = torch.randn(1, *shape, device=machine.device)
            scores = torch.zeros(classes, *shape, device=machine.device)
            seen = torch.zeros(shape, device=machine.device)
            places = list(itertools.product([slice(None)], *(windows(each, window) for each in shape)))
            for first in range(0, len(places), 6):
                some = places[first : first + 6]
                with machine.autocast():
                    found = model(torch.stack([volume[place] for place in some]))
                for place, logits in zip(some, found.float(), strict=True):
                    scores[place] += logits
                    seen[place[1:]] += 1
            return ((scores / seen).argmax(0) == 0).float().mean()

    def step(number: int) -> Tensor:
        rng = sizes_of(number)
        optimizer.zero_grad()
        parts = rng.randrange(2, 4)
        losses = []
        for _ in range(parts):
            depth, width = side(rng.randrange(64, 161, 16)), side(rng.randrange(64, 161, 32))
            loss = loss_of([depth, width, width]) / parts
            loss.backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 12)
        optimizer.step()
        if number % 4 == 3:
            losses.append(scan([side(rng.randrange(128, 289, 8)) for _ in range(3)], side(128)))
        return torch.stack(losses).sum()

    return step


def recommender(machine: Machine) -> Step:
    """Histories of many lengths from large tables with sparse gradients; every third step scores all items for some."""
    items, people, width, device = machine.count(3_000_000), machine.count(4_000_000), 256, machine.device
    history = nn.EmbeddingBag(items, width, mode="mean", sparse=True, device=device)
    person = nn.Embedding(people, width // 4, sparse=True, device=device)
    tower = nn.Sequential(
        nn.Linear(width + width // 4, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, width)
    ).to(device)
    sparse = torch.optim.SparseAdam([*history.parameters(), *person.parameters()], 1e-3)
    dense = torch.optim.AdamW(tower.parameters(), 1e-3)

    def popular(count: int) -> Tensor:
        """Items, the first ones far more often than the last."""
        return (torch.rand(count, device=device).pow(3) * items).long().clamp(max=items - 1)

    def interests(count: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
        """A vector for each of so many people, the lengths of their histories, and the items of all of these."""
        chance = torch.Generator().manual_seed(count)  # sizes depend on the step alone
        lengths = (1 + torch.rand(count, generator=chance).square() * longest).long()
        seen, lengths = popular(int(lengths.sum())), lengths.to(device)
        ids = torch.randint(0, people, (count,), device=device)
        found = tower(torch.cat([history(seen, lengths.cumsum(0) - lengths), person(ids)], 1))
        return found, lengths, seen

    def learn(count: int, longest: int, strangers: int) -> Tensor:
        """The item that comes next is to win against others, the same ones for all."""
        wanted, others = popular(count), torch.randint(0, items, (strangers,), device=device)
        found, _, _ = interests(count, longest)
        table = history.weight
        right = (found * f.embedding(wanted, table, sparse=True)).sum(1, keepdim=True)
        wrong = found @ f.embedding(others, table, sparse=True).T
        wrong = wrong.masked_fill(wanted[:, None] == others, -torch.inf)
        loss = f.cross_entropy(torch.cat([right, wrong], 1), torch.zeros(count, dtype=torch.long, device=device))
        sparse.zero_grad()
        train(dense, loss)
        sparse.step()
        return loss.detach()

    def evaluate(count: int, longest: int) -> Tensor:
        """How sure the best hundred new items are, scored with all of them at once."""
        with torch.no_grad():
            found, lengths, seen = interests(count, longest)
            scores = found @ history.weight.T
            rows = torch.arange(count, device=device).repeat_interleave(lengths, output_size=len(seen))
            scores[rows, seen] = -torch.inf
            return scores.topk(100).values.softmax(1).amax(1).mean()

    def step(number: int) -> Tensor:
        rng = sizes_of(number)
        longest = rng.randrange(60, 180)
        loss = learn(machine.count(rng.randrange(16_000, 64_000)), longest, rng.randrange(4_000, 10_000))
        if number % 3 == 2:
            loss += sum(evaluate(rng.randrange(256, 800), 2 * longest) for _ in range(2))
        return loss

    return step


@dataclass(eq=False)
class Trial:
    """A model with the settings that are tried with it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None  # of the weights so far
    batch: int
    left: int  # steps to come


def sweep(machine: Machine) -> Step:
    """Looks for hyper-parameters: four models of many sizes train in turn, and others take the places of the finished.

    The last evaluation of a trial is on larger batches; a copy of its weights stays until the next but one has ended.
    """
    attend_to_any_length()
    words = machine.words(30_000)
    trials: list[Trial] = []
    finished: list[dict[str, Tensor]] = []

    def begin(rng: random.Random) -> Trial:
        width, layers = machine.width(rng.randrange(384, 1537, 64), 64), rng.randrange(4, 13)
        with machine.device:
            model = Encoder(words, width, layers)
        kinds = {
            "adamw": lambda: torch.optim.AdamW(model.parameters(), 3e-4),
            "amsgrad": lambda: torch.optim.AdamW(model.parameters(), 1e-4, amsgrad=True),
            "momentum": lambda: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
            "adafactor": lambda: torch.optim.Adafactor(model.parameters(), 1e-3),
        }
        optimizer = kinds[rng.choice(list(kinds))]()
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95)) if rng.random() < 0.4 else None
        return Trial(model, optimizer, average, rng.choice([12, 16, 24, 32]), rng.randrange(3, 12))

    def loss_of(model: nn.Module, batch: int, length: int) -> Tensor:
        text = machine.tokens(words, batch, length)
        with machine.autocast():
            return prediction_loss(model(text), text)

    def advance(trial: Trial, rng: random.Random) -> Tensor:
        loss = train(trial.optimizer, loss_of(trial.model, trial.batch, rng.randrange(128, 640)))
        if trial.average is not None:
            trial.average.update_parameters(trial.model)
        trial.left -= 1
        return loss

    def finish(trial: Trial, rng: random.Random) -> Tensor:
        with torch.no_grad():
            trials.remove(trial)
            model = (trial.model if trial.average is None else trial.average.module).eval()
            finished.append({name: each.to(torch.bfloat16, copy=True) for name, each in model.state_dict().items()})
            del finished[:-2]
            return loss_of(model, 2 * trial.batch, rng.randrange(256, 640))

    def step(number: int) -> Tensor:
        rng = sizes_of(number)
        while len(trials) < 4:
            trials.append(begin(rng))
        losses = [advance(trial, rng) for trial in trials]
        losses += [finish(trial, rng) for trial in list(trials) if trial.left == 0]
        return torch.stack(losses).sum()

    return step
