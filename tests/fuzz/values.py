"""Values that a change writes into a document: bounds, odd texts, names of dtypes and types."""

from __future__ import annotations

INTS = (
    0, 1, 2, 3, -1, -2, 7, 63, 64, 65, 127, 128, 255, 256, 1023, 1024, 1025, 50_000, 2**16,
    2**20, 2**30, 2**31 - 1, 2**31, 2**32, 2**40, 2**61 - 2, 2**61 - 1, 2**61, 2**62, 2**63 - 2,
    2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**31), -(2**63), -(2**63) - 1, 2**100, -(2**8000),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.5, -1.0, -2.0, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "", "x", "a.b", "0", "-1", "keys", "values", "items", "layers", "__class__", "__dict__",
    "__init__", "_fields", "data", "shape", "self", "args", "kwargs", "arg_0", "x_0", "n n", "*",
    "..", ".", "a" * 1024, "a" * 1025, "a." * 512, "\x1b[2J\x1b[31mred\x07", "\x1b]0;title\x07",
    "\x9b31m", "\u202eevil\u2066", "\u2028\u2029", "\r\n\t", "\0", "\ud800", "\ud800\udc00x",
    "😀" * 8, "é" * 300, "%s%n{0}{x}", "';--", '"""', "\\", "[red]x[/red]", "None", "True",
    "class", "lambda", "policy", "meta", "cpu", "cuda:0", "cuda:9999", "mps", "under way",
    "Dim", "torch", "int64", "(", "[", "a[0]", "ı", "ﬁ", "x" * 100_000,
)  # fmt: skip
BYTES = (b"", b"\0", b"\x1b[2J", b"\xff\xfe", bytes(16), b"x" * 1025)
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
    "uint16", "uint32", "uint64", "bool", "complex64", "complex128", "complex32", "bcomplex32",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "int1", "int4", "int7",
    "uint1", "uint3", "uint7", "qint8", "quint8", "qint32", "quint4x2", "quint2x4", "strided",
    "_inductor", "_dynamo", "Tensor", "nn", "float", "", "\x1b[31m", "system", "__name__", "ops",
)  # fmt: skip
TYPES = (
    "builtins:list", "builtins:dict", "builtins:int", "builtins:object", "builtins:str",
    "builtins:tuple", "builtins:set", "builtins:slice", "builtins:range", "builtins:bytearray",
    "builtins:eval", "builtins:type", "collections:OrderedDict", "collections:defaultdict",
    "collections:deque", "collections:Counter", "types:SimpleNamespace", "os:system",
    "subprocess:run", "subprocess:Popen", "torch:Tensor", "torch:Size", "torch.nn:Linear",
    "torch.nn.utils.rnn:PackedSequence", "torch.return_types:max", "torch.return_types:topk",
    "calltape_analyzer.pytree.placeholder:Placeholder", "collections:namedtuple", "antigravity:x",
    "transformers.cache_utils:DynamicCache", "transformers.cache_utils:DynamicLayer",
    "transformers.cache_utils:StaticCache", "transformers.cache_utils:EncoderDecoderCache",
    "transformers.modeling_outputs:BaseModelOutput", "evil:Cache", "evil:Layer", "a:B.C.D",
    "inspect:FrameInfo", "sys:version_info", "time:struct_time",
    "tests.fuzz.classes:Pair",
    "tests.fuzz.classes:Frozen", "tests.fuzz.classes:Slotted",
    "tests.fuzz.classes:Colour", "tests.fuzz.classes:MyCache",
    "tests.fuzz.classes:MyDict", "tests.fuzz.classes:MyList",
    "tests.fuzz.classes:Registered", "\x1b[31m:\x1b[2J", "a\u202e:b\u202e", "nocolon",
    "a" * 255 + ":" + "b" * 256, ":", "a:b:c", "a b:c",
)  # fmt: skip
KINDS = {
    "tensor": ("leaf",), "ndarray": ("leaf",),
    "int": ("scalar",), "float": ("scalar",), "complex": ("scalar",), "str": ("scalar",),
    "bytes": ("scalar",), "none": (), "ellipsis": (), "bool": ("value",), "dtype": ("name",),
    "device": ("name",), "layout": ("name",), "memory_format": ("name",),
    "enum": ("type", "name", "value"), "class": ("type",), "opaque": ("type", "reason"),
    "list": ("children",), "tuple": ("children",), "set": ("children",),
    "frozenset": ("children",), "size": ("children",), "slice": ("children",),
    "range": ("children",), "dict": ("keys", "children"),
    "namedtuple": ("type", "fields", "children"), "dataclass": ("type", "fields", "children"),
    "object": ("type", "fields", "children"), "custom": ("type", "context", "children"),
}  # fmt: skip
PARAMETER_KINDS = (
    "POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "KEYWORD_ONLY", "VAR_KEYWORD",
)  # fmt: skip
CONSTANTS = ("float32", "strided", "channels_last", "sparse_coo", "cpu", "meta", "cuda:0")
