// The limits of FORMAT.md, section 10. A reader refuses what exceeds them before it allocates.

export const MAX_MEMBER_BYTES = 64 * 1024 * 1024 + 64 * 1024;
export const MAX_DOCUMENT_BYTES = 64 * 1024 * 1024;
export const MAX_DOCUMENT_VALUES = 1_000_000;
/** How deep a document of unknown content may be nested; in a tree it is MAX_NESTING. */
export const MAX_DOCUMENT_NESTING = 1024;
export const MAX_GROUP_CALLS = 65_536;
export const MAX_GROUP_BYTES = 64 * 1024 * 1024;
export const MAX_GROUP_BYTES_OF_SEVERAL = 1024 * 1024;
export const MAX_GROUP_TIMES = 128;
/** How many times the bytes of its table and documents, as they are stored, the calls of a group may ask for of what they share. */
export const MAX_SHARED_TIMES = 1024;
export const MAX_INDEX_BYTES = 48 * 1024 * 1024;
export const MAX_TABLE_BYTES = 64 * 1024 * 1024;
export const MAX_REFERENCES = 50_000;
export const MAX_TAKEN = 64;
/** Parts of all tensors of a call together that earlier calls have. */
export const MAX_TAKEN_PARTS = 2 ** 19;
export const MAX_NODES = 50_000;
export const MAX_DEPTH = 64;
export const MAX_NESTING = 2 * MAX_DEPTH + 2;
export const MAX_LEAVES = 50_000;
export const MAX_RANK = 64;
export const MAX_LEAVES_OF_KEY = 1024;
export const MAX_INFLATED_BLOB = 64 * 1024 * 1024;
export const MAX_INT_BYTES = 1024;
export const MAX_HEADER_BYTES = 16 * 1024 * 1024;
export const MAX_HEADER_NESTING = 64;
export const MAX_HEADER_BRACKETS = 8 * MAX_LEAVES;
export const MAX_TEXT = 1024 * 1024;
export const MAX_SHORT = 1024;
export const MAX_TYPE_NAME = 512;
export const MAX_KEY = 1024;
export const MAX_KEY_PARTS = 16;
export const MAX_AUTOCASTS = 16;
export const MAX_TORCH_NAME = 64;
export const MAX_PATHS = 4 * 1024 * 1024;
export const MAX_NAME = 64;
export const MAX_PARAMETERS = 10_000;
export const MAX_REASONS = 1000;
export const MAX_STEPS = 100;
export const MAX_SOURCES = 1000;
export const MAX_OUTSIDE = 16;
export const MAX_PARTS = 64;
export const MAX_ROWS = 65_536;
export const MAX_ROW_COSTS = 8 * 1024 * 1024;
export const MAX_KIND_COSTS = 4096;
export const MAX_KIND_BYTES = 4 * 1024 * 1024;
export const MAX_SIZES = 32;

export const MAX_COUNT = 2n ** 63n - 1n;
export const MAX_UINT64 = 2n ** 64n - 1n;
export const MAX_SIGNATURE = 2n ** 128n - 1n;
export const MIN_INT64 = -(2n ** 63n);
export const MAX_TABLE_TIMES = 32;
export const MAX_WIDTH = 1024;
