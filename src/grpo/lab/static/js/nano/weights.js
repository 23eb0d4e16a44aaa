// Tensors by name: views of one flat array, in the order of the file. Gradients and moments have the same form.
class Tensors {
  constructor(shapes, flat) {
    this.shapes = shapes;
    this.flat = flat;
    this.of = {};
    let begin = 0;
    for (const [name, shape] of Object.entries(shapes)) {
      const size = shape.reduce((product, length) => product * length, 1);
      this.of[name] = flat.subarray(begin, begin + size);
      begin += size;
    }
  }

  zeros() {
    return new Tensors(this.shapes, new Float32Array(this.flat.length));
  }

  copy() {
    return new Tensors(this.shapes, this.flat.slice());
  }
}

// The content of a .safetensors file of float32: the header's length, the header (JSON), then the numbers.
export function readSafetensors(bytes) {
  const start = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
  const entries = Object.entries(header).filter(([name]) => name !== "__metadata__");
  entries.sort(([, one], [, other]) => one.data_offsets[0] - other.data_offsets[0]);
  const shapes = Object.fromEntries(entries.map(([name, { shape }]) => [name, shape]));
  return new Tensors(shapes, new Float32Array(bytes.buffer.slice(start)));
}
