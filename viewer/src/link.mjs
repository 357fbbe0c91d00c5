// The link from the page to the thread that reads.

/** An answer that is an error: `kind`, the reason as message, `member` and `offset`. */
export class ReaderError extends Error {
  constructor({ kind, reason, member, offset }) {
    super(reason);
    this.kind = kind;
    this.member = member;
    this.offset = offset;
  }
}

const trusted = globalThis.trustedTypes?.createPolicy("reader", { createScriptURL: (url) => url });
const asProgram = (url) => (trusted === undefined ? url : trusted.createScriptURL(url));
let inPage = null; // the URL of the thread's program, if its text is in the page

/** The thread. From a disk, a browser starts one only if its text is in the page, and it is no module. */
function newWorker() {
  const text = document.getElementById("reader-program");
  if (text === null) return new Worker(asProgram("src/reader.mjs"), { type: "module" });
  inPage ??= asProgram(URL.createObjectURL(new Blob([text.textContent], { type: "text/javascript" })));
  return new Worker(inPage);
}

export class Link {
  /** @param onProgress called with `what`, `done` and `total` (null if unknown) of long work, and with
   * null when nothing is asked any more. */
  constructor(onProgress) {
    this.worker = newWorker();
    this.waiting = new Map();
    this.next = 0;
    this.onProgress = onProgress;
    this.worker.addEventListener("message", ({ data }) => this.receive(data));
    this.worker.addEventListener("error", (event) => this.fail(event.message ?? "the reading thread does not start"));
  }

  receive({ id, answer, error, progress }) {
    if (progress !== undefined) {
      this.onProgress(progress);
      return;
    }
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    if (this.waiting.size === 0) this.onProgress(null);
    if (error === undefined) resolve(answer);
    else reject(new ReaderError(error));
  }

  fail(reason) {
    for (const { reject } of this.waiting.values()) reject(new ReaderError({ kind: "bug", reason, member: null, offset: null }));
    this.waiting.clear();
  }

  ask(ask, given = {}) {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, ask, given });
    });
  }

  /** Ends the thread, whatever it does. */
  end() {
    this.worker.terminate();
    this.fail("stopped");
  }
}
