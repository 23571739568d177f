//! `callboard mcp`: the start and the end, without a host. `tests/external/` has those that people use.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::callboard;

/// Settings of the network have no effect: also a protocol that is switched off is served to the host.
#[test]
fn a_protocol_that_is_off_for_the_network_is_served_on_stdin() {
    for off in ["openai", "mcp", "oip,mcp"] {
        let mut command = callboard(["mcp", "examples/digits", "--mcp", "--doors-off", off]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut host = command.spawn().unwrap();
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        // The command may have failed, and stdin has no reader then.
        let _ = writeln!(host.stdin.take().unwrap(), "{request}");
        let output = host.wait_with_output().unwrap();
        assert!(output.status.success(), "{off}: {output:?}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["result"]["tools"][0]["name"], "digits", "{off}: {answer}");
    }
}
