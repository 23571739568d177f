// Values as docs/wire.md has them: envelopes with segments for byte strings, over MessagePack.

// The bytes are not what the format says.
class Malformed extends Error {}

// A value that JavaScript does not have, such as a tensor. Its bytes pass through; a tuple with a segment is refused.
class Extension {
  constructor(code, payload, segment) {
    Object.assign(this, { code, payload, segment });
  }
}

// ---- Envelopes ------------------------------------------------------------------------------------------------------

const MAGIC = Buffer.from([0x89, 0x43, 0x42, 0x45, 1, 0, 0, 0]); // version 1, flags 0
const HEADER_BYTES = 24;
const SEGMENT = 7; // the code of the extension that refers to a segment
const SEGMENT_BYTES = 1024; // byte strings of this size and more become segments
const aligned = (at) => Math.ceil(at / 64) * 64;

function readEnvelope(bytes) {
  if (bytes.length < HEADER_BYTES || !bytes.subarray(0, 8).equals(MAGIC)) throw new Malformed("not an envelope");
  const count = bytes.readUInt32LE(12), tree = HEADER_BYTES + 8 * count;
  const treeEnd = tree + bytes.readUInt32LE(8);
  if (treeEnd > bytes.length) throw new Malformed("the lengths exceed the envelope");
  const segments = [];
  let end = treeEnd;
  for (let n = 0; n < count; n++) {
    const start = aligned(end);
    end = start + Number(bytes.readBigUInt64LE(HEADER_BYTES + 8 * n));
    segments.push(bytes.subarray(start, end));
  }
  if (end !== bytes.length || bytes.readBigUInt64LE(16) !== BigInt(end)) throw new Malformed("a wrong length");
  const value = readValue(bytes.subarray(tree, treeEnd), segments);
  if (segments.length > 0) throw new Malformed("a segment to which nothing refers");
  return value;
}

function writeEnvelope(value) {
  const segments = [], tree = writeValue(value, segments);
  const header = Buffer.alloc(HEADER_BYTES + 8 * segments.length), pieces = [header, tree];
  let end = header.length + tree.length;
  segments.forEach((segment, n) => {
    header.writeBigUInt64LE(BigInt(segment.length), HEADER_BYTES + 8 * n);
    pieces.push(Buffer.alloc(aligned(end) - end), segment);
    end = aligned(end) + segment.length;
  });
  MAGIC.copy(header);
  header.writeUInt32LE(tree.length, 8);
  header.writeUInt32LE(segments.length, 12);
  header.writeBigUInt64LE(BigInt(end), 16);
  return Buffer.concat(pieces);
}

// ---- Reading MessagePack --------------------------------------------------------------------------------------------

function readValue(bytes, segments = []) {
  const from = { bytes, at: 0, segments };
  const value = read(from);
  if (from.at !== bytes.length) throw new Malformed("bytes after the value");
  return value;
}

// A map becomes a `Map`, which keeps its order; an integer beyond 2^53 becomes a `BigInt`.
function read(from) {
  const take = (size) => {
    if (size > from.bytes.length - from.at) throw new Malformed("the value is cut");
    return from.bytes.subarray(from.at, (from.at += size));
  };
  const uint = (bytes) => take(bytes).readUIntBE(0, bytes);
  const int = (bytes) => take(bytes).readIntBE(0, bytes);
  const wide = (big) => (Number.isSafeInteger(Number(big)) ? Number(big) : big);
  const text = (size) => take(size).toString();
  const extension = (size) => extended(take(1).readInt8(), take(size), from.segments);
  const list = (size) => {
    const items = [];
    while (size-- > 0) items.push(read(from));
    return items;
  };
  const map = (size) => {
    const entries = new Map();
    while (size-- > 0) entries.set(read(from), read(from));
    return entries;
  };

  const tag = uint(1);
  if (tag < 0x80) return tag;
  if (tag < 0x90) return map(tag & 15);
  if (tag < 0xa0) return list(tag & 15);
  if (tag < 0xc0) return text(tag & 31);
  if (tag >= 0xe0) return tag - 256;
  switch (tag) {
    case 0xc0: return null;
    case 0xc2: return false;
    case 0xc3: return true;
    case 0xc4: case 0xc5: case 0xc6: return take(uint(1 << (tag - 0xc4)));
    case 0xc7: case 0xc8: case 0xc9: return extension(uint(1 << (tag - 0xc7)));
    case 0xca: return take(4).readFloatBE();
    case 0xcb: return take(8).readDoubleBE();
    case 0xcc: case 0xcd: case 0xce: return uint(1 << (tag - 0xcc));
    case 0xcf: return wide(take(8).readBigUInt64BE());
    case 0xd0: case 0xd1: case 0xd2: return int(1 << (tag - 0xd0));
    case 0xd3: return wide(take(8).readBigInt64BE());
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return extension(1 << (tag - 0xd4));
    case 0xd9: case 0xda: case 0xdb: return text(uint(1 << (tag - 0xd9)));
    case 0xdc: case 0xdd: return list(uint(2 << (tag - 0xdc)));
    case 0xde: case 0xdf: return map(uint(2 << (tag - 0xde)));
    default: throw new Malformed("a form that MessagePack does not have");
  }
}

function extended(code, payload, segments) {
  if (code !== SEGMENT) return new Extension(code, payload);
  const segment = segments.shift();
  if (segment === undefined) throw new Malformed("a reference to no segment");
  const isBytes = payload[0] === 0;
  return isBytes ? segment : new Extension(code, payload, segment);
}

// ---- Writing MessagePack --------------------------------------------------------------------------------------------

// Long byte strings go to `segments`, which a head does not have. A number without a fraction becomes an integer.
function writeValue(value, segments) {
  const pieces = [];
  write(value, pieces, segments);
  return Buffer.concat(pieces);
}

function write(value, pieces, segments) {
  if (value === null || value === undefined) pieces.push(Buffer.of(0xc0));
  else if (typeof value === "boolean") pieces.push(Buffer.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "bigint" || Number.isSafeInteger(value)) pieces.push(integer(value));
  else if (typeof value === "number") pieces.push(float(value));
  else if (typeof value === "string") {
    const text = Buffer.from(value);
    pieces.push(header(text.length, 0xa0, 32, { 1: 0xd9, 2: 0xda, 4: 0xdb }), text);
  } else if (value instanceof Uint8Array) {
    const isSegment = segments && value.length >= SEGMENT_BYTES;
    if (isSegment) write(new Extension(SEGMENT, Buffer.alloc(8), value), pieces, segments);
    else pieces.push(header(value.length, 0, 0, { 1: 0xc4, 2: 0xc5, 4: 0xc6 }), value);
  } else if (value instanceof Extension) {
    const payload = Buffer.from(value.payload);
    if (value.segment) payload.writeUInt32LE(segments.push(value.segment) - 1, 4);
    const power = [1, 2, 4, 8, 16].indexOf(payload.length);
    const start = power < 0 ? header(payload.length, 0, 0, { 1: 0xc7, 2: 0xc8, 4: 0xc9 }) : Buffer.of(0xd4 + power);
    pieces.push(start, Buffer.of(value.code), payload);
  } else if (Array.isArray(value)) {
    pieces.push(header(value.length, 0x90, 16, { 2: 0xdc, 4: 0xdd }));
    for (const item of value) write(item, pieces, segments);
  } else {
    const entries = value instanceof Map ? [...value] : Object.entries(value);
    pieces.push(header(entries.length, 0x80, 16, { 2: 0xde, 4: 0xdf }));
    for (const [key, item] of entries) write(key, pieces, segments), write(item, pieces, segments);
  }
}

// A size below `limit` is part of the first byte. Others follow one of `tags`, in as many bytes as its key says.
function header(size, first, limit, tags) {
  if (size < limit) return Buffer.of(first | size);
  const bytes = [1, 2, 4].find((bytes) => tags[bytes] && size < 256 ** bytes);
  return Buffer.concat([Buffer.of(tags[bytes]), bigEndian(size, bytes)]);
}

function integer(value) {
  if (value >= -32 && value < 128) return Buffer.of(Number(value));
  const fits = (bytes) => (value < 0 ? value >= -(256 ** bytes) / 2 : value < 256 ** bytes);
  const power = [1, 2, 4, 8].findIndex(fits);
  if (power < 0) throw new Error(`the integer ${value} exceeds 64 bits`);
  return Buffer.concat([Buffer.of((value < 0 ? 0xd0 : 0xcc) + power), bigEndian(value, 1 << power)]);
}

function bigEndian(value, bytes) {
  const digits = BigInt.asUintN(8 * bytes, BigInt(value)).toString(16);
  return Buffer.from(digits.padStart(2 * bytes, "0"), "hex");
}

function float(value) {
  const bytes = Buffer.of(0xcb, 0, 0, 0, 0, 0, 0, 0, 0);
  bytes.writeDoubleBE(value, 1);
  return bytes;
}

module.exports = { Malformed, readEnvelope, readValue, writeEnvelope, writeValue };
