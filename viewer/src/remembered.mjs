// What was read last, so that it is not read again.

export class Remembered {
  /** @param make promises what is not remembered, from its key. */
  constructor(most, make) {
    this.most = most;
    this.make = make;
    this.known = new Map(); // by key, the last used one at the end
  }

  /** What a key stands for. Another `make` may know more. */
  async get(key, make = this.make) {
    const found = this.known.get(key) ?? (await make(key));
    this.known.delete(key);
    this.known.set(key, found);
    if (this.known.size > this.most) this.known.delete(this.known.keys().next().value);
    return found;
  }
}
