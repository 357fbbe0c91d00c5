// CRC-32 as in zlib, gzip and zip.

// Table k gives the checksum of a byte that k zero bytes follow, so that eight bytes take one step.
const TABLES = Array.from({ length: 8 }, () => new Uint32Array(256));
for (let byte = 0; byte < 256; byte++) {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  TABLES[0][byte] = value >>> 0;
}
for (let k = 1; k < 8; k++) {
  for (let byte = 0; byte < 256; byte++) {
    const before = TABLES[k - 1][byte];
    TABLES[k][byte] = (before >>> 8) ^ TABLES[0][before & 255];
  }
}
const [T0, T1, T2, T3, T4, T5, T6, T7] = TABLES;

/** The CRC-32 of bytes, as a number from 0 to 2**32 - 1; `before` is that of the bytes before. */
export function crc32(bytes, before = 0) {
  let crc = ~before;
  let at = 0;
  for (const end = bytes.length - 7; at < end; at += 8) {
    crc ^= bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24);
    crc =
      T7[crc & 255] ^ T6[(crc >>> 8) & 255] ^ T5[(crc >>> 16) & 255] ^ T4[crc >>> 24] ^
      T3[bytes[at + 4]] ^ T2[bytes[at + 5]] ^ T1[bytes[at + 6]] ^ T0[bytes[at + 7]];
  }
  for (; at < bytes.length; at++) crc = (crc >>> 8) ^ T0[(crc ^ bytes[at]) & 255];
  return ~crc >>> 0;
}
