// What was read last, so that it is not read again.

export class Remembered {
  /**
   * @param most of what `sizeOf` tells, all together; one is remembered whatever its size.
   * @param make promises what is not remembered, from its key.
   */
  constructor(most, make, sizeOf = () => 1) {
    Object.assign(this, { most, make, sizeOf });
    this.known = new Map(); // by key, the last used one at the end
  }

  /** What a key stands for. Another `make` may know more. */
  async get(key, make = this.make) {
    const found = this.known.get(key) ?? (await make(key));
    this.known.delete(key);
    this.known.set(key, found);
    while (this.known.size > 1 && this.size() > this.most) this.known.delete(this.known.keys().next().value);
    return found;
  }

  size() {
    return [...this.known.values()].reduce((sum, one) => sum + this.sizeOf(one), 0);
  }
}
