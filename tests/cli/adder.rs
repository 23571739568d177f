//! Small ONNX models for tests: each adds its own number, so that an answer says which model gave it.

/// A field of protobuf with a length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(content);
    bytes
}

/// A field of protobuf with a small number.
fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

/// `x` or `y`: 32-bit floats of shape `[batch, 1]`.
fn value_info(name: &str) -> Vec<u8> {
    let axes = [field(1, &field(2, b"batch")), field(1, &number(1, 1))].concat();
    let tensor = [number(1, 1), field(2, &axes)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

/// A model `y = x + addend`.
pub(crate) fn adder(addend: f32) -> Vec<u8> {
    adder_of(&field(9, &addend.to_le_bytes()))
}

/// The same with its addend in another file.
pub(crate) fn adder_from(file: &str) -> Vec<u8> {
    let entry = |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let entries = [entry("location", file), entry("offset", "0"), entry("length", "4")].concat();
    adder_of(&[entries, number(14, 1)].concat())
}

fn adder_of(addend: &[u8]) -> Vec<u8> {
    let node = [field(1, b"x"), field(1, b"c"), field(2, b"y"), field(4, b"Add")].concat();
    let constant = [&number(1, 1), &number(2, 1), &field(8, b"c"), addend].concat();
    let graph = [
        field(1, &node),
        field(2, b"adder"),
        field(5, &constant),
        field(11, &value_info("x")),
        field(12, &value_info("y")),
    ];
    [number(1, 8), field(7, &graph.concat()), field(8, &[field(1, b""), number(2, 13)].concat())].concat()
}

/// A model `y = x +` the sum of all `x` of its batch. Its operators do not show that: a reshape hides it.
pub(crate) fn mixer() -> Vec<u8> {
    let node = |inputs: &[&str], output: &str, operator: &str| {
        let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
        field(1, &[inputs, field(2, output.as_bytes()), field(4, operator.as_bytes())].concat())
    };
    let shape = [number(1, 1), number(2, 7), field(8, b"shape"), field(9, &(-1_i64).to_le_bytes())].concat();
    let graph = [
        node(&["x", "shape"], "line", "Reshape"),
        node(&["line"], "sum", "ReduceSum"),
        node(&["x", "sum"], "y", "Add"),
        field(2, b"mixer"),
        field(5, &shape),
        field(11, &value_info("x")),
        field(12, &value_info("y")),
    ];
    [number(1, 8), field(7, &graph.concat()), field(8, &[field(1, b""), number(2, 13)].concat())].concat()
}

/// A model that ends its process when it runs: it asks for more memory than there are addresses.
pub(crate) fn crasher() -> Vec<u8> {
    let fill = [field(1, b"s"), field(2, b"c"), field(4, b"ConstantOfShape")].concat();
    let add = [field(1, b"x"), field(1, b"c"), field(2, b"y"), field(4, b"Add")].concat();
    // 128 TiB of floats. Each axis fits 32 bits, in which engines count.
    let axes = [1_u64 << 25, 1 << 20].map(u64::to_le_bytes).concat();
    let shape = [number(1, 2), number(2, 7), field(8, b"s"), field(9, &axes)].concat();
    let graph = [
        field(1, &fill),
        field(1, &add),
        field(2, b"crasher"),
        field(5, &shape),
        field(11, &value_info("x")),
        field(12, &value_info("y")),
    ];
    [number(1, 8), field(7, &graph.concat()), field(8, &[field(1, b""), number(2, 13)].concat())].concat()
}

/// A model `y = x` that makes as many floats as the sum of `x` says on its way.
pub(crate) fn allocator() -> Vec<u8> {
    let node = |inputs: &[&str], output: &str, operator: &str, attribute: &[u8]| {
        let mut node: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
        node.extend([field(2, output.as_bytes()), field(4, operator.as_bytes())].concat());
        node.extend(attribute);
        field(1, &node)
    };
    // An attribute of type INT: field 20 has a tag of two bytes.
    let to_int64 = field(5, &[field(1, b"to"), number(3, 7), vec![0xa0, 0x01, 2]].concat());
    let axes = [number(1, 1), number(2, 7), field(8, b"axes"), field(9, &1_u64.to_le_bytes())].concat();
    let graph = [
        node(&["x"], "sum", "ReduceSum", &[]),
        node(&["sum", "axes"], "line", "Squeeze", &[]),
        node(&["line"], "shape", "Cast", &to_int64),
        node(&["shape"], "zeros", "ConstantOfShape", &[]),
        node(&["zeros"], "zero", "ReduceSum", &[]),
        node(&["x", "zero"], "y", "Add", &[]),
        field(2, b"allocator"),
        field(5, &axes),
        field(11, &value_info("x")),
        field(12, &value_info("y")),
    ];
    [number(1, 8), field(7, &graph.concat()), field(8, &[field(1, b""), number(2, 13)].concat())].concat()
}

/// A model that does not come to an end when it runs.
pub(crate) fn looper() -> Vec<u8> {
    slow_adder(1 << 62, 0.0)
}

/// A model `y = addend` for `x = 0`, after a loop of this many rounds.
pub(crate) fn slow_adder(rounds: u64, addend: f32) -> Vec<u8> {
    let node = |inputs: &[&str], output: &str, operator: &str, attribute: &[u8]| {
        let mut node: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
        node.extend([&field(2, output.as_bytes()), &field(4, operator.as_bytes()), attribute].concat());
        field(1, &node)
    };
    let scalar = |name: &str, kind: u8| {
        let tensor = [number(1, kind), field(2, b"")].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
    };
    let weight = |name: &str, kind: u8, raw: &[u8]| {
        field(5, &[number(2, kind), field(8, name.as_bytes()), field(9, raw)].concat())
    };
    let body = [
        node(&["cond"], "on", "Identity", &[]),
        node(&["v", "v"], "doubled", "Add", &[]),
        field(2, b"body"),
        field(11, &scalar("round", 7)),
        field(11, &scalar("cond", 9)),
        field(11, &value_info("v")),
        field(12, &scalar("on", 9)),
        field(12, &value_info("doubled")),
    ];
    // An attribute of type GRAPH: field 20 has a tag of two bytes.
    let body = field(5, &[field(1, b"body"), field(6, &body.concat()), vec![0xa0, 0x01, 5]].concat());
    let graph = [
        node(&["rounds", "true", "x"], "looped", "Loop", &body),
        node(&["looped", "addend"], "y", "Add", &[]),
        field(2, b"looper"),
        weight("rounds", 7, &rounds.to_le_bytes()),
        weight("addend", 1, &addend.to_le_bytes()),
        weight("true", 9, &[1]),
        field(11, &value_info("x")),
        field(12, &value_info("y")),
    ];
    [number(1, 8), field(7, &graph.concat()), field(8, &[field(1, b""), number(2, 13)].concat())].concat()
}
