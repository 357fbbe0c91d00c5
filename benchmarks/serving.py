"""Models behind HTTP at 80% of their capacity: latency and throughput with the recorder on, held
against the same model without one, in the same server and the same minutes. One is small, so that a
call takes two milliseconds; one is of real size."""

from __future__ import annotations

import contextlib
import copy
import http.client
import http.server
import json
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Question, Row
from calltape_recorder import First, FlightRecorder, Novelty, Recorder, Stats, record

__all__ = ["rows"]

OFF, ALL, NOVELTY, FLIGHT = "no recorder", "all calls", "novelty", "flight recorder"
SHARE = "all calls that 1% of the time affords"
OPTIONS: dict[str, dict[str, Any]] = {
    ALL: {},
    NOVELTY: {"keep": Novelty()},
    FLIGHT: {"keep": First(0), "flight_recorder": FlightRecorder()},
    SHARE: {"max_share": 0.01},
}
_SAYS = {
    ALL: "every call recorded",
    NOVELTY: "`Novelty()`",
    FLIGHT: "flight recorder",
    SHARE: "`max_share=0.01`",
}
_CLIENTS = 16
_LOAD = 0.8
_TOKENS = 3
_ROUNDS = 1 + len(OPTIONS)  # at least: every contender is once the first


@dataclass(frozen=True)
class _Served:
    """A model, how many requests a turn has (half as many where less work was asked for), and how
    many seconds all turns take at least."""

    name: str
    make: Callable[[], torch.nn.Module]
    requests: int
    seconds: float


def _llama() -> torch.nn.Module:
    """Large enough that the model, not Python around it, takes most of a request."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=128,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model: torch.nn.Module = LlamaForCausalLM(config).eval()
    return model


def _gpt2() -> torch.nn.Module:
    """124 million parameters; a step takes tens of milliseconds on one core."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model: torch.nn.Module = GPT2LMHeadModel(GPT2Config(eos_token_id=None)).eval()
    return model


_SERVED = (_Served("Llama", _llama, 80, 80.0), _Served("GPT-2 small", _gpt2, 40, 240.0))


def _twin(model: torch.nn.Module) -> torch.nn.Module:
    """The same model as another object, with the same weights."""
    weights = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(weight): weight for weight in weights})


class _Server(http.server.ThreadingHTTPServer):
    """Serves a twin of one model per contender, one request at a time as an accelerator would."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, model: torch.nn.Module, folder: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = {name: _twin(model) for name in (OFF, *OPTIONS)}
        self.recorders: dict[str, Recorder] = {
            name: stack.enter_context(
                record(self.models[name], folder / f"{name.replace(' ', '-')}.tape", **options)
            )
            for name, options in OPTIONS.items()
        }
        self.turn = threading.Lock()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one segment: two would wait for each other
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = torch.tensor([asked["ids"]])
        with self.server.turn, torch.inference_mode():
            tokens = self.server.models[asked["model"]].generate(  # type: ignore[operator]
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=_TOKENS,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip
        body = json.dumps(tokens[0].tolist()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def _serve(pipe: Connection, make: Callable[[], torch.nn.Module], folder: str) -> None:
    """The server's process: tells its port, serves until the pipe says otherwise, tells what each
    recorder counted."""
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        server = _Server(make(), Path(folder), stack)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        pipe.send(server.server_address[1])
        pipe.recv()
        server.shutdown()
        thread.join()
        for recorder in server.recorders.values():
            recorder.flush()
        pipe.send({name: recorder.stats() for name, recorder in server.recorders.items()})


@dataclass(frozen=True)
class Turn:
    """Latencies in seconds, and requests per second, of one contender in one round."""

    p50: float
    p99: float
    rate: float


class _Clients:
    """Connections that stay open; every turn sends the same prompts."""

    def __init__(self, port: int, requests: int) -> None:
        self._port = port
        self._requests = requests
        self._local = threading.local()

    def _ask(self, body: bytes) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            self._local.connection = connection
        connection.request("POST", "/", body)
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}")

    def _send(self, name: str, due: list[float], clients: int) -> list[float]:
        """Sends a request at each of these seconds from now, late only where all clients wait;
        gives when each was answered, counted from when it was due."""
        random_source = random.Random(0)
        bodies = [
            json.dumps({"model": name, "ids": random_source.choices(range(2, 1024), k=length)})
            for length in random_source.choices(range(4, 33), k=len(due))
        ]
        latencies: list[float] = []
        failures: list[BaseException] = []
        waiting = iter(zip(due, bodies, strict=True))
        lock = threading.Lock()
        begin = time.perf_counter()

        def client() -> None:
            while not failures:
                with lock:
                    arrival = next(waiting, None)
                if arrival is None:
                    return
                if (wait := begin + arrival[0] - time.perf_counter()) > 0:
                    time.sleep(wait)
                try:
                    self._ask(arrival[1].encode())
                except BaseException as error:
                    failures.append(error)
                    raise
                latencies.append(time.perf_counter() - begin - arrival[0])

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise RuntimeError("a request failed") from failures[0]
        return latencies

    def capacity(self, name: str) -> float:
        """Requests per second when two clients never wait: one request runs, one is in line."""
        requests = self._requests // 2
        begin = time.perf_counter()
        self._send(name, [0.0] * requests, 2)
        return requests / (time.perf_counter() - begin)

    def turn(self, name: str, rate: float) -> Turn:
        """Arrivals at random, ``rate`` a second on average whatever the answers take; then what
        the contender can do at most."""
        random_source = random.Random(1)
        due, now = [], 0.0
        for _ in range(self._requests):
            now += random_source.expovariate(rate)
            due.append(now)
        latencies = sorted(self._send(name, due, _CLIENTS))
        quantiles = statistics.quantiles(latencies, n=100, method="inclusive")
        return Turn(quantiles[49], quantiles[98], self.capacity(name))


def _measure(clients: _Clients, seconds: float) -> tuple[list[float], dict[str, list[Turn]]]:
    """The rates of the rounds, and the turns of each contender. Turns are short and rounds many:
    what a busy machine does for a while then hits all contenders, and the rate follows it."""
    names = [OFF, *OPTIONS]
    for name in names:  # warm: caches, pools, and what is news to the novelty policy
        clients.capacity(name)
    rates: list[float] = []
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    while len(rates) < _ROUNDS or time.perf_counter() < end:
        shift = len(rates) % len(names)
        rates.append(_LOAD * clients.capacity(OFF))
        for name in names[shift:] + names[:shift]:
            turns[name].append(clients.turn(name, rates[-1]))
    return rates, turns


def rows_with(
    model: str, name: str, rates: list[float], turns: dict[str, list[Turn]], stats: Stats
) -> Iterator[Row]:
    def held(figure: Callable[[Turn], float]) -> tuple[float, float, float]:
        """Medians of this contender and of no recorder, and of the ratios round by round."""
        ours, base = ([figure(turn) for turn in turns[which]] for which in (name, OFF))
        ratios = [a / b for a, b in zip(ours, base, strict=True)]
        return statistics.median(ours), statistics.median(base), statistics.median(ratios)

    p50, p50_off, p50_ratio = held(lambda turn: turn.p50)
    p99, p99_off, p99_ratio = held(lambda turn: turn.p99)
    most, most_off, most_ratio = held(lambda turn: turn.rate)
    what = f"{model} behind HTTP, {_SAYS[name]}"
    at = f"at {statistics.median(rates):.0f} requests/s"
    yield Row(
        f"{what}: median latency", f"{p50 * 1e3:.1f} ms", f"{p50_off * 1e3:.1f} ms",
        f"{p50_ratio:.2f} ×", None if name == FLIGHT else Question.SERVER,
    )  # fmt: skip
    yield Row(
        f"{what}: 99th percentile {at}", f"{p99 * 1e3:.1f} ms", f"{p99_off * 1e3:.1f} ms",
        f"{p99_ratio:.2f} ×",
    )  # fmt: skip
    yield Row(
        f"{what}: throughput", f"{most:.0f} requests/s", f"{most_off:.0f} requests/s",
        f"{most_ratio:.2f} ×", Question.SERVER if name == ALL else None,
    )  # fmt: skip
    if name != FLIGHT:
        yield Row(f"{what}: calls kept", f"{stats.kept / stats.seen:.1%}")


def rows(scale: float) -> Iterator[Row]:
    """The rows of each model, recorded in each way."""
    for served in _SERVED:
        yield from _rows_of(served, scale)


def _rows_of(served: _Served, scale: float) -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=_serve, args=(theirs, served.make, folder), daemon=True)
        process.start()
        theirs.close()
        requests = served.requests if scale >= 1 else served.requests // 2
        rates, turns = _measure(_Clients(pipe.recv(), requests), served.seconds * scale)
        pipe.send("end")
        stats = pipe.recv()
        process.join()
    if stats[ALL].kept != stats[ALL].seen:
        raise RuntimeError(f"not all calls were kept, the ratio is of less work: {stats[ALL]}")
    for name in OPTIONS:
        yield from rows_with(served.name, name, rates, turns, stats[name])
