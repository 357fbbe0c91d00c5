// The tapes that `calltape view --out` wrote into the page, as base64, and the tables of their variants.

/**
 * @param root the document.
 * @returns {Array} a `name`, a `size`, `variants`, and a `file`, which is decoded each time it is asked for.
 */
export function embeddedTapes(root) {
  return [...root.querySelectorAll('script[type="application/x-calltape"]')].map((block) => ({
    name: block.dataset.name,
    size: sizeOf(block.textContent),
    variants: JSON.parse(block.nextElementSibling.textContent),
    get file() {
      return new File([bytesOf(block.textContent)], block.dataset.name);
    },
  }));
}

const sizeOf = (text) => (text.length / 4) * 3 - (text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0);

function bytesOf(text) {
  const decoded = atob(text);
  const bytes = new Uint8Array(decoded.length);
  for (let at = 0; at < decoded.length; at++) bytes[at] = decoded.charCodeAt(at);
  return bytes;
}
