# SPDX-License-Identifier: Apache-2.0
"""Programs of jobs that are known for trouble with memory, written from the jobs alone: structures of proteins, forces
on atoms, a model larger than the GPU, adapters of many customers, electrons in crystals. They need PyTorch only.

Sizes of `adapters` and `bands` depend on the numbers of all steps so far, since requests and crystals last for some.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as f
from models import AdaptedLayer, AdaptedWriter, Folding, Potential
from more_programs import attend_to_any_length
from programs import Machine, Step, adamw, on, prediction_loss, sizes_of, train
from torch import Tensor, nn


def folding(machine: Machine) -> Step:
    """Learns distances in proteins from crops of many lengths, after up to three passes without gradients.

    Memory grows with the cube of the length, so a block is computed again for its gradients; every fifth step predicts
    a whole protein, with attention in slices of rows.
    """
    bins = 64
    model = Folding(128, 8, bins).to(machine.device)
    optimizer = adamw(model)

    def sequence(length: int) -> Tensor:
        count = max(8, round(machine.length(length) * machine.scale ** (1 / 3)))
        return torch.randint(0, 21, (count,), device=machine.device)

    def passes(residues: Tensor, count: int, rows: int) -> Tensor | None:
        before = None
        for _ in range(count):
            with torch.no_grad(), machine.autocast():
                before = model(residues, before, rows)[1]
        return before

    def step(number: int) -> Tensor:
        rng = sizes_of(number)
        residues = sequence(rng.choice([rng.randrange(160, 512), 512]))
        size = len(residues)
        before = passes(residues, rng.randrange(4), size)
        with machine.autocast():
            scores, _ = model(residues, before, size)
        truth = torch.randint(0, bins, (size, size), device=machine.device)
        loss = train(optimizer, f.cross_entropy(scores.flatten(0, 1), truth.flatten()))
        if number % 5 == 4:
            whole = sequence(rng.randrange(600, 1000))
            before = passes(whole, 1, 64)
            with torch.no_grad(), machine.autocast():
                loss += model(whole, before, 64)[0].softmax(-1).amax(-1).mean()
        return loss

    return step


def atoms(machine: Machine) -> Step:
    """Learns energies and forces of molecules, which takes the gradient of a gradient.

    No two batches have equally many neighbours. Every fourth step moves the atoms of a large cell three times, with
    new neighbours each time.
    """
    device, reach = machine.device, 5.0
    model = Potential(machine.width(128, 8), 4, reach).to(device)
    optimizer = adamw(model)

    def placed(count: int) -> Tensor:
        """A lattice with atoms a little beside their sites."""
        side = math.ceil(count ** (1 / 3))
        sites = torch.arange(count, device=device)
        lattice = torch.stack([sites % side, sites // side % side, sites // side**2], 1)
        return 2.2 * lattice + 0.3 * torch.randn(count, 3, device=device)

    def cloud(sizes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Places, elements, and the molecule of each atom."""
        many, names = torch.tensor(sizes, device=device), torch.arange(len(sizes), device=device)
        owners = names.repeat_interleave(many, output_size=sum(sizes))
        elements = torch.randint(0, 90, (sum(sizes),), device=device)
        return torch.cat([placed(size) for size in sizes]), elements, owners

    def neighbours(places: Tensor, sizes: list[int]) -> Tensor:
        """Targets and sources, found for each molecule by itself."""
        found, first = [], 0
        for some in places.split(sizes):
            found.append((torch.cdist(some, some) < reach).fill_diagonal_(fill_value=False).nonzero().T + first)
            first += len(some)
        return torch.cat(found, 1)

    def forces(
        places: Tensor, elements: Tensor, owners: Tensor, sizes: list[int], *, learns: bool
    ) -> tuple[Tensor, Tensor]:
        """Energies of the molecules, and what pulls at each atom."""
        edges = neighbours(places, sizes)
        places.requires_grad_()
        energies = model(elements, places, edges, owners, len(sizes))
        (slope,) = torch.autograd.grad(energies.sum(), places, create_graph=learns)
        return energies, -slope

    def step(number: int) -> Tensor:
        rng = sizes_of(number)
        sizes = [rng.randrange(20, 300) for _ in range(machine.count(rng.randrange(12, 34)))]
        energies, pulls = forces(*cloud(sizes), sizes, learns=True)
        loss = f.mse_loss(energies, torch.randn_like(energies)) + f.mse_loss(pulls, torch.randn_like(pulls))
        loss = train(optimizer, loss)
        if number % 4 == 3:
            cell = [max(8, machine.count(rng.randrange(5_000, 11_000)))]
            places, elements, owners = cloud(cell)
            for _ in range(3):
                energies, pulls = forces(places, elements, owners, cell, learns=False)
                places = places.detach() + 0.05 * pulls.tanh()
            loss += energies.detach().mean() / cell[0]
        return loss

    return step


class Ferry:
    """Carries tensors between the GPU and pinned memory of the host, on a stream of its own where there is a GPU."""

    AHEAD = 2

    def __init__(self, machine: Machine) -> None:
        self.device, self.stream = machine.device, machine.stream()

    def put_away(self, tensors: list[Tensor], into: list[Tensor] | None = None) -> list[Tensor]:
        """Copies in host memory, there once the stream has come so far."""
        pinned = self.stream is not None
        kept = into or [torch.empty(each.shape, dtype=each.dtype, pin_memory=pinned) for each in tensors]
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), on(self.stream):
            for here, there in zip(tensors, kept, strict=True):
                there.copy_(here, non_blocking=True)
                if self.stream is not None:
                    here.record_stream(self.stream)
        return kept

    def bring(self, loads: list[list[Tensor]]) -> Iterator[list[Tensor]]:
        """Each load on the GPU in turn, the next two on their way; waits for old ones, or all would come at once."""
        coming: deque[tuple[list[Tensor], torch.cuda.Event | None]] = deque()
        used: deque[torch.cuda.Event] = deque()
        for number in range(len(loads) + self.AHEAD):
            if len(used) > self.AHEAD:
                used.popleft().synchronize()
            if number < len(loads):
                with on(self.stream):
                    here = [each.to(self.device, non_blocking=True, copy=True) for each in loads[number]]
                coming.append((here, None if self.stream is None else self.stream.record_event()))
            if number < self.AHEAD:
                continue
            here, arrived = coming.popleft()
            if arrived is not None:
                torch.cuda.current_stream().wait_event(arrived)
                for each in here:
                    each.record_stream(torch.cuda.current_stream())
            yield here
            here = []
            if arrived is not None:
                used.append(torch.cuda.current_stream().record_event())


def offload(machine: Machine) -> Step:
    """Trains a model that stays in the host's memory: a stream brings each layer before its turn, and takes it back.

    Inputs of layers wait in the host's memory, too, and a layer is computed again for its gradients, which change its
    weights at once. Batches have many lengths.
    """
    attend_to_any_length()
    device, layers, rate, ferry = machine.device, 16, 1e-3, Ferry(machine)
    words, width = machine.words(32_000), machine.width(2048, 128)
    with torch.device("meta"):
        skeleton = AdaptedLayer(width)
    names = [name for name, _ in skeleton.named_parameters()]
    embedding = nn.Embedding(words, width).to(device, torch.bfloat16)
    nn.init.normal_(embedding.weight, std=0.02)

    def made() -> list[Tensor]:
        with device:
            return [each.detach().to(torch.bfloat16) for each in AdaptedLayer(width).parameters()]

    host = [ferry.put_away(made()) for _ in range(layers)]

    def run(weights: list[Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(skeleton, dict(zip(names, weights, strict=True)), (x,))
        return out

    def forward(x: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        """Output of the last layer, and the inputs of all in host memory."""
        inputs = []
        with torch.no_grad():
            for weights in ferry.bring(host):
                inputs.append(ferry.put_away([x]))
                x = run(weights, x)
        return x, inputs

    def backward(slope: Tensor, inputs: list[list[Tensor]]) -> Tensor:
        """The loss's gradient for the input of the first layer."""
        order = range(layers - 1, -1, -1)
        for number, here in zip(order, ferry.bring([[*host[each], *inputs[each]] for each in order]), strict=True):
            *weights, x = (each.requires_grad_() for each in here)
            *changes, slope = torch.autograd.grad(run(weights, x), [*weights, x], slope)
            with torch.no_grad():
                torch._foreach_add_(weights, changes, alpha=-rate)
            ferry.put_away(weights, host[number])
        return slope

    def step(number: int) -> Tensor:
        rng = sizes_of(number)
        text = machine.tokens(words, rng.randrange(6, 17), rng.randrange(512, 2049))
        start = embedding(text)
        out, inputs = forward(start.detach())
        out.requires_grad_()
        loss = prediction_loss(out[:, :-1] @ embedding.weight.T, text[:, 1:])
        slope, change = torch.autograd.grad(loss, [out, embedding.weight])
        (more,) = torch.autograd.grad(start, embedding.weight, backward(slope, inputs))
        with torch.no_grad():
            embedding.weight.sub_(change + more, alpha=rate)
        return loss.detach()

    return step


@dataclass(eq=False)
class Adapter:
    """Matrices that a customer adds to each layer, and the cache of the instructions before all questions."""

    weights: list[list[Tensor]]
    instructions: Tensor
    users: int = 0
    used: int = 0  # number of the last use


@dataclass(eq=False)
class Request:
    adapter: Adapter
    cache: Tensor  # with room for all words to come
    unread: int
    left: int
    filled: int = 0


def adapters(machine: Machine) -> Step:
    """Answers for many customers with adapters of many ranks, loaded when asked for, and dropped for others.

    Requests share their customer's instructions; they are read in pieces, and words are guessed some at a time.
    """
    attend_to_any_length()
    device, customers, kept, layers, at_once = machine.device, range(48), 12, 12, 24
    words, width, places = machine.words(32_000), machine.width(2560, 128), machine.length(machine.count(120_000))
    with device:
        model = AdaptedWriter(words, width, layers).to(torch.bfloat16).eval()
    shares, sides = [1 / (1 + each) for each in customers], [(width, 3 * width), (width, 4 * width)]
    most = 256 * sum(before + after for before, after in sides)
    file = torch.empty(2 * most, dtype=torch.bfloat16, pin_memory=device.type == "cuda").normal_(0, 0.01)
    loaded: dict[int, Adapter] = {}
    running: list[Request] = []
    uses = itertools.count(1)

    def some_words(count: int) -> Tensor:
        return torch.randint(0, words, (count,), device=device)

    def load(rng: random.Random) -> Adapter:
        """From the host; then the customer's instructions are read."""
        rank, length = rng.choice([8, 16, 32, 64, 128, 256]), machine.length(rng.randrange(300, 4000))
        shapes = [shape for before, after in sides for shape in ((before, rank), (rank, after))]
        sizes = [math.prod(shape) for shape in shapes]
        weights = []
        for _ in range(layers):
            begin = rng.randrange(most)
            parts = file[begin : begin + sum(sizes)].split(sizes)
            here = [part.to(device, non_blocking=True) for part in parts]
            weights.append([part.view(shape) for part, shape in zip(here, shapes, strict=True)])
        adapter = Adapter(weights, model.empty_cache(length))
        model(some_words(length), None, adapter.instructions, 0, weights)
        return adapter

    def adapter_of(customer: int) -> Adapter:
        if customer not in loaded:
            idle = sorted((each.used, name) for name, each in loaded.items() if each.users == 0)
            for _, name in idle[: max(0, len(loaded) + 1 - kept)]:
                del loaded[name]
            loaded[customer] = load(random.Random(f"customer {customer}"))
        return loaded[customer]

    def begin(rng: random.Random) -> None:
        """Requests wait outside until there is room for all their words."""
        while len(running) < at_once:
            question, answer = machine.length(rng.randrange(100, 8000)), rng.randrange(16, 100)
            if running and sum(each.cache.shape[3] for each in running) + question + answer > places:
                return
            adapter = adapter_of(rng.choices(customers, shares)[0])
            adapter.users += 1
            running.append(Request(adapter, model.empty_cache(question + answer), question, answer))

    def advance(request: Request, rng: random.Random) -> Tensor:
        """Reads a piece of the question, or writes one word, and so many of those guessed as are right."""
        adapter, reads = request.adapter, request.unread > 0
        count = min(request.unread, 1024) if reads else min(request.left, rng.randrange(1, 6))
        logits = model(some_words(count), adapter.instructions, request.cache, request.filled, adapter.weights)
        right = count if reads else rng.randrange(1, count + 1)
        request.filled += right
        request.unread -= right if reads else 0
        request.left -= 0 if reads else right
        adapter.used = next(uses)
        if request.left == 0:
            adapter.users -= 1
            running.remove(request)
        return logits.float().amax()

    def step(number: int) -> Tensor:
        rng, best = sizes_of(number), []
        with torch.no_grad():
            for _ in range(3):
                begin(rng)
                best += [advance(request, rng) for request in list(running)]
            return torch.stack(best).sum()

    return step


class Crystal:
    """Electrons in a potential on a grid: for each direction of travel the plane waves, and the states made of them."""

    SPACING = 0.4

    def __init__(self, shape: list[int], ions: int, states: int, directions: int, device: torch.device) -> None:
        charges = torch.zeros(shape, device=device)
        charges.view(-1)[torch.randint(0, charges.numel(), (ions,), device=device)] = -1
        self.real_squares = self.squares(shape, 0, torch.fft.rfftfreq, device)
        nuclei = self.filtered(charges, (-0.5 * self.real_squares).exp())
        self.nuclei = nuclei / nuclei.std()
        self.potential = self.nuclei.clone()
        self.kinetic, self.places, self.states = [], [], []
        for direction in range(directions):
            energies = 0.5 * self.squares(shape, 0.05 * direction, torch.fft.fftfreq, device).flatten()
            places = (energies < 0.5 * (math.pi / 2 / self.SPACING) ** 2).nonzero().squeeze(1)
            count = min(states, len(places) // 4)
            start = torch.randn(len(places), count, dtype=torch.complex64, device=device)
            self.kinetic.append(energies[places])
            self.places.append(places)
            self.states.append(torch.linalg.qr(start / (1 + energies[places, None]))[0].mT.contiguous())

    def squares(self, shape: list[int], shift: float, last: Callable[..., Tensor], device: torch.device) -> Tensor:
        """|G + k|^2 where a transform has its numbers; of real fields, the last axis has half as many."""
        kinds = [torch.fft.fftfreq, torch.fft.fftfreq, last]
        axes = [
            2 * math.pi * kind(each, self.SPACING, device=device) + shift
            for kind, each in zip(kinds, shape, strict=True)
        ]
        x, y, z = torch.meshgrid(*axes, indexing="ij")
        return x.square() + y.square() + z.square()

    def filtered(self, field: Tensor, factors: Tensor) -> Tensor:
        return torch.fft.irfftn(torch.fft.rfftn(field) * factors, s=field.shape)

    def in_space(self, direction: int, states: Tensor) -> Tensor:
        grid = torch.zeros(len(states), self.potential.numel(), dtype=states.dtype, device=states.device)
        grid.index_copy_(1, self.places[direction], states)
        return torch.fft.ifftn(grid.view(-1, *self.potential.shape), dim=(1, 2, 3))

    def applied(self, direction: int, states: Tensor) -> Tensor:
        """The Hamiltonian of each state."""
        moved = torch.fft.fftn(self.in_space(direction, states) * self.potential, dim=(1, 2, 3))
        return states * self.kinetic[direction] + moved.flatten(1).index_select(1, self.places[direction])

    def improve(self, direction: int, rounds: int) -> Tensor:
        """Davidson's method: adds what the states lack to their subspace, then takes its lowest states."""
        basis = self.states[direction]
        image, count = self.applied(direction, basis), len(basis)
        for _ in range(rounds):
            energies, mix = torch.linalg.eigh(basis.conj() @ image.mT)
            energies, mix = energies[:count, None], mix[:, :count].mT
            lacking = (mix @ image - energies * (mix @ basis)) / (1 + self.kinetic[direction])
            lacking = lacking - lacking @ basis.mH @ basis
            lacking = torch.linalg.qr(lacking.mT)[0].mT
            basis = torch.cat([basis, lacking])
            image = torch.cat([image, self.applied(direction, lacking)])
        energies, mix = torch.linalg.eigh(basis.conj() @ image.mT)
        self.states[direction] = mix[:, :count].mT @ basis
        return energies[:count].mean()

    def renew(self) -> None:
        """The potential of nuclei and electrons, mixed with the one before."""
        density = torch.zeros_like(self.potential)
        for direction, states in enumerate(self.states):
            density += torch.view_as_real(self.in_space(direction, states)).square().sum((0, -1))
        density *= 2 / len(self.states) * density.numel() / self.SPACING**3
        squares = self.real_squares
        repulsion = self.filtered(density, torch.where(squares > 0, 4 * math.pi / squares.clamp(min=1e-6), 0))
        wanted = self.nuclei + repulsion - density.clamp(min=0).pow(1 / 3)
        self.potential += self.filtered(wanted - self.potential, 0.5 * squares / (squares + 0.5))


def bands(machine: Machine) -> Step:
    """Energies of electrons in one crystal after the other, by plane waves: a step improves all states, then the
    potential. Grids, states and plane waves are of many sizes, and all states are transformed at once.
    """
    crystals: list[Crystal] = []
    steps_left = 0

    def begin(rng: random.Random) -> Crystal:
        sides = [rng.choice([80, 84, 90, 96, 98, 100, 108, 112, 120, 125, 128]) for _ in range(3)]
        shape = [max(8, round(machine.length(side) * machine.scale ** (1 / 3))) for side in sides]
        ions, states = machine.count(rng.randrange(30, 120)), rng.randrange(96, 260)
        return Crystal(shape, ions, states, rng.randrange(2, 4), machine.device)

    def step(number: int) -> Tensor:
        nonlocal steps_left
        rng = sizes_of(number)
        if steps_left == 0:
            crystals.clear()
            crystals.append(begin(rng))
            steps_left = rng.randrange(3, 7)
        steps_left -= 1
        (crystal,) = crystals
        found = [crystal.improve(each, rng.randrange(1, 3)) for each in range(len(crystal.states))]
        crystal.renew()
        return torch.stack(found).sum()

    return step
