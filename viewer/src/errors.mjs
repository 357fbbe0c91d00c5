// The one error of the reader. Its kinds are those of fixtures/README.md.

/** Something is wrong with a tape. `kind` is one of not_a_tape, version, unsupported, damaged,
 * invalid, limit, io and usage; `member` and `offset` (bytes) say where. */
export class TapeError extends Error {
  constructor(kind, reason, { member = null, offset = null } = {}) {
    super(reason);
    this.name = "TapeError";
    this.kind = kind;
    this.member = member;
    this.offset = offset;
  }

  /** Sets the parts of the place that are not known yet, and returns the error itself. */
  at({ member = null, offset = null }) {
    this.member ??= member;
    this.offset ??= offset;
    return this;
  }

  /** The error as plain data, for a message between threads. */
  plain() {
    return { kind: this.kind, reason: this.message, member: this.member, offset: this.offset };
  }
}

export const damaged = (reason) => new TapeError("damaged", reason);
export const invalid = (reason) => new TapeError("invalid", reason);
export const unsupported = (reason) => new TapeError("unsupported", reason);
export const overLimit = (reason) => new TapeError("limit", reason);
