//! The Open Inference Protocol: countless inputs and outputs, false shapes, wrong lengths.

use std::time::Duration;

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::MIB;

const INFER: &str = "/v2/models/honest/infer";
const JSON: &str = "application/json";
const INPUT: &str = r#"{"name":"input","shape":[2],"datatype":"FP64","data":[0.1,0.2]}"#;

fn comma_separated(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(",")
}

#[test]
fn a_hundred_thousand_inputs() {
    let distinct =
        comma_separated(100_000, |index| format!(r#"{{"name":"i{index}","shape":[1],"datatype":"FP64","data":[0]}}"#));
    let repeated = comma_separated(100_000, |_| INPUT.to_owned());
    let requests = [distinct, repeated].map(|inputs| Request::post(INFER, JSON, format!(r#"{{"inputs":[{inputs}]}}"#)));
    Attack::new("oip: 100,000 inputs")
        .run(|target| target.run_clients(4, |index| target.repeat(&requests[index % 2], 1)));
}

#[test]
fn a_hundred_thousand_outputs() {
    let outputs = comma_separated(100_000, |index| format!(r#"{{"name":"{}"}}"#, ["score", "label", "top"][index % 3]));
    let body = format!(r#"{{"inputs":[{INPUT}],"outputs":[{outputs}]}}"#);
    let request = Request::post(INFER, JSON, body);
    Attack::new("oip: 100,000 outputs").run(|target| target.repeat(&request, 4));
}

#[test]
fn a_hundred_thousand_parameters() {
    let parameters = comma_separated(100_000, |index| format!(r#""p{index}":{index}"#));
    let body = format!(r#"{{"parameters":{{{parameters}}},"inputs":[{INPUT}]}}"#);
    let request = Request::post(INFER, JSON, body);
    Attack::new("oip: 100,000 parameters").run(|target| target.repeat(&request, 4));
}

#[test]
fn shapes_without_elements() {
    let axes = format!("1048576,{}0", "1,".repeat(29));
    let shapes = [axes, "1,".repeat(100_000) + "0", format!("{},{}", u64::MAX, u64::MAX), "-1".to_owned()];
    let requests = shapes.map(|shape| {
        let input = format!(r#"{{"name":"input","shape":[{shape}],"datatype":"FP64","data":[]}}"#);
        Request::post(INFER, JSON, format!(r#"{{"inputs":[{input}]}}"#))
    });
    Attack::new("oip: shapes of empty, of 100,000 and of endless axes").run(|target| {
        target.run_clients(4, |index| target.repeat(&requests[index], 1));
    });
}

#[test]
fn false_lengths_of_binary_data() {
    let input = |bytes: u64| {
        let parameters = format!(r#"{{"binary_data_size":{bytes}}}"#);
        format!(r#"{{"inputs":[{{"name":"input","shape":[2],"datatype":"FP64","parameters":{parameters}}}]}}"#)
    };
    let requests: Vec<Request> = [0, 16, 1 << 40, u64::MAX]
        .iter()
        .map(|bytes| {
            let head = input(*bytes);
            let length = head.len().to_string();
            let body = [head.as_bytes(), &[0; 15]].concat();
            Request::post(INFER, "application/octet-stream", body).header("inference-header-content-length", &length)
        })
        .collect();
    Attack::new("oip: binary sizes that lie").run(|target| {
        target.run_clients(requests.len(), |index| target.repeat(&requests[index], 1));
    });
}

/// Every element becomes a separate value and costs far more than its four bytes.
#[test]
fn a_million_empty_elements() {
    let count = MIB - 1;
    let parameters = format!(r#"{{"binary_data_size":{}}}"#, 4 * count);
    let shape = format!(r#""shape":[{count}],"datatype":"BYTES""#);
    let head = format!(r#"{{"inputs":[{{"name":"input",{shape},"parameters":{parameters}}}]}}"#);
    let body = [head.as_bytes(), &vec![0; 4 * count]].concat();
    let request = Request::post("/v2/models/keep/infer", "application/octet-stream", body)
        .header("inference-header-content-length", &head.len().to_string())
        .gzip();
    Attack::new("oip: 16 × a million empty BYTES, gzip").run(|target| target.repeat(&request, 16));
}

#[test]
fn half_a_million_rows() {
    let data = comma_separated(500_000, |_| "[0.1,0.2]".to_owned());
    let input = format!(r#"{{"name":"input","shape":[500000,2],"datatype":"FP64","data":[{data}]}}"#);
    let request = Request::post(INFER, JSON, format!(r#"{{"inputs":[{input}]}}"#)).gzip();
    Attack::new("oip: 8 × 500,000 rows, gzip").run(|target| target.repeat(&request, 8));
}

#[test]
fn many_and_deep_instances() {
    needs_binary!();
    let predict =
        |instances: &str| Request::post("/v1/models/honest:predict", JSON, format!(r#"{{"instances":[{instances}]}}"#));
    let requests = [
        predict(&vec!["[0.9,0.1]"; 500_000].join(",")),
        predict(&vec!["0"; 4 * MIB].join(",")),
        predict(&format!("{}1{}", "[".repeat(1_000_000), "]".repeat(1_000_000))),
        predict(&format!("\"{}\"", "a".repeat(48 * MIB))),
    ];
    Attack::new("predict: 500,000 instances, 4,000,000 numbers, depth, 48 MiB")
        .lasting(Duration::from_secs(4))
        .run(|target| target.run_clients(4, |index| target.repeat(&requests[index], 1)));
}
