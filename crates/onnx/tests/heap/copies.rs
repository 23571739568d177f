//! What a run copies, counted in bytes that Rust allocates: inputs are used in place, a batch is stacked once, outputs
//! stay where ONNX Runtime has put them. Skipped without its library, as `onnxruntime.rs`. And what a header costs.

use callboard_codec::{Tensor, Value};
use callboard_core::{App, Node};
use callboard_onnx::Signature;
use tokio::runtime::{Builder, Runtime};

use crate::heap;
use crate::support::library::load_graph;
use crate::support::{F32, Fixed, Named, abs};

const WIDTH: usize = 256 * 1024;
const BYTES: usize = 4 * WIDTH;

fn start(name: &str) -> Option<(Runtime, Node)> {
    let model = load_graph(&abs(F32, &[Named("batch"), Fixed(WIDTH as i64)]), name)?;
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let stage = callboard_onnx::stage("model", &model).max_batch_size(4);
    let app = App::new().route_described("/model", stage, model.input_type(), model.output_type());
    let node = runtime.block_on(app.start()).unwrap();
    Some((runtime, node))
}

fn item(number: usize) -> Value {
    Tensor::from_vec(&[WIDTH], vec![-(number as f32); WIDTH]).unwrap().into()
}

fn check(answer: &Value, number: usize) {
    assert_eq!(answer.as_tensor().unwrap().as_slice::<f32>().unwrap()[WIDTH - 1], number as f32);
}

#[test]
fn a_single_item_is_never_copied() {
    let _turn = heap::turn();
    let Some((runtime, node)) = start("copies-one") else { return };
    let (client, item) = (node.client(), item(3));
    let call = || runtime.block_on(client.call::<Value, Value>("/model", item.clone())).unwrap();
    call();
    let (answer, _, allocated) = heap::measured(call);
    check(&answer, 3);
    assert!(allocated < BYTES / 8, "{allocated} bytes for an input and an output of {BYTES} bytes");
}

#[test]
fn a_batch_is_stacked_once_and_its_answers_share_the_output() {
    let _turn = heap::turn();
    let Some((runtime, node)) = start("copies-batch") else { return };
    let client = node.client();
    let items: Vec<Value> = (0..8).map(item).collect();
    let call_all = || {
        let call = |item: &Value| {
            let (client, item) = (client.clone(), item.clone());
            runtime.spawn(async move { client.call::<Value, Value>("/model", item).await.unwrap() })
        };
        let calls: Vec<_> = items.iter().map(call).collect();
        runtime.block_on(async {
            let mut answers = Vec::new();
            for call in calls {
                answers.push(call.await.unwrap());
            }
            answers
        })
    };
    call_all();
    let (answers, _, allocated) = heap::measured(call_all);
    answers.iter().enumerate().for_each(|(number, answer)| check(answer, number));
    assert!(allocated < items.len() * BYTES + BYTES / 2, "{allocated} bytes for {} items of {BYTES}", items.len());
}

#[test]
fn the_header_of_a_file_of_empty_messages_takes_less_memory_than_the_file_has_bytes() {
    let _turn = heap::turn();
    for field in [1_u8, 5, 11, 12, 13] {
        // Field 7 of the model, the graph, of 2 MiB.
        let mut file = vec![0x3a, 0x80, 0x80, 0x80, 0x01];
        file.extend([field << 3 | 2, 0].repeat(1 << 20));
        let (read, _, allocated) = heap::measured(|| Signature::try_from_onnx(&file));
        read.unwrap_err();
        assert!(allocated < file.len(), "{allocated} bytes for {} of field {field}", file.len());
    }
}
