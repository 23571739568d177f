//! The services of `examples/migrate` answer as the other systems do: `requests.json` are the requests, and
//! `answers.json` what `before.py` answers in its own system (`record.py` made it). Both are compared with it.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::process::run;
use crate::python::Python;
use crate::python_apps::{answer, package, post, python, serve};
use crate::support::{Answer, Server, directory};
use crate::tool::JAVA;

#[test]
fn the_service_of_mosec_answers_the_same() {
    compare("mosec", "after.py");
}

#[test]
fn the_service_of_litserve_answers_the_same() {
    compare("litserve", "after.py");
}

#[test]
fn the_services_of_bentoml_answer_the_same() {
    compare("bentoml", "after.py:Reviews");
}

#[test]
fn the_app_of_fastapi_answers_the_same() {
    compare("fastapi", "after.py");
}

/// Where it is mounted its errors are its own, too.
#[test]
fn the_mounted_app_of_fastapi_answers_the_same_in_every_case() {
    let Some(python) = python() else { return };
    let mut server = serve_example(&python, "fastapi", "mounted.py");
    server.wait_until_printed("an ASGI app answers /api and all below it");
    for (request, before) in requests("fastapi").iter().zip(read("fastapi", "answers.json")) {
        let after = send(&server, "/api", request);
        let body: Value = serde_json::from_str(&after.body).unwrap();
        assert_eq!((before["status"].as_u64(), &before["body"]), (Some(after.status.into()), &body), "{request}");
    }
}

#[test]
fn the_predictor_of_cog_answers_the_same() {
    compare("cog", "after.py");
}

#[test]
fn the_deployments_of_ray_serve_are_services() {
    let Some(python) = python() else { return };
    let server = serve_example(&python, "ray", "after.py:Api");
    for (question, expected) in [
        (json!({ "text": "hello", "model": "xy" }), (200, json!({ "answer": "hello hello" }))),
        (json!({ "text": "hello" }), (200, json!({ "answer": "hello hello hello hello hello" }))),
    ] {
        assert_eq!(answer(&server, "/ask", &question), expected);
    }
    assert_eq!(post(&server, "/ask", &json!({ "text": "aaaaaaaaaaaaaaaa" })).status, 403);
    assert_eq!(post(&server, "/ask", &json!({ "model": "xy" })).status, 422);
}

#[test]
fn the_pipeline_of_mpservice_answers_the_same() {
    compare("mpservice", "after.py");
}

#[test]
fn the_service_of_octoai_answers_the_same() {
    compare("octoai", "after.py");
}

#[test]
fn an_unpacked_model_archive_answers_the_same() {
    let Some(python) = python() else { return };
    let made = directory();
    let in_python = |arguments: &[&str]| {
        let mut command = Command::new(python.program("python"));
        command.args(arguments).current_dir("examples/migrate/torchserve/model");
        run(command.env("PYTHONPATH", package().join("src"))).unwrap_or_else(|error| panic!("{error}"))
    };
    let (archive, unpacked) = (made.join("reviews.mar"), made.join("reviews"));
    let (archive, unpacked) = (archive.to_str().unwrap(), unpacked.to_str().unwrap());
    in_python(&["-m", "zipfile", "-c", archive, "MAR-INF", "reviews.py", "words.json"]);
    let printed = in_python(&["-m", "callboard.mar", archive, unpacked]);
    assert_eq!(printed, format!("reviews: callboard serve {unpacked}"));
    let (app, page) = (format!("{unpacked}/app.py"), "docs/migrate/torchserve.md");
    let (app, page) = (fs::read_to_string(app).unwrap(), fs::read_to_string(page).unwrap());
    assert!(page.contains(&app), "the page shows another app than this:\n{app}");
    let server = serve(&python, unpacked);
    compare_answers(&server, "torchserve", "answers.json");
    compare_answers(&server, "torchserve", "answers-torchserve.json");
}

#[test]
fn the_other_systems_answer_as_recorded() {
    let Some(python) = Python::with("migrate") else { return };
    for system in ["bentoml", "fastapi", "litserve", "mosec", "mpservice", "octoai"] {
        python.run("before.py", &[system]);
    }
}

#[test]
fn the_page_names_the_versions_that_were_compared() {
    let page = fs::read_to_string("docs/migrate/README.md").unwrap();
    let requirements = fs::read_to_string("tests/external/requirements/migrate.txt").unwrap();
    for name in ["bentoml", "fastapi", "litserve", "mosec", "mpservice", "octoai-sdk"] {
        let line = requirements.lines().find(|line| line.starts_with(&format!("{name}==")));
        let row = format!("| {} |", line.unwrap_or_else(|| panic!("{name}")).replace("==", " | "));
        assert!(page.contains(&row), "{row}");
    }
}

/// The one "before" that needs Java.
#[test]
fn multi_model_server_answers_as_recorded() {
    let java = || run(Command::new("java").arg("-version"));
    let (Some(_), Some(python)) = (JAVA.if_required(java), Python::with("multi-model-server")) else { return };
    python.run("model_server.py", &[]);
}

fn compare(system: &str, app: &str) {
    let Some(python) = python() else { return };
    compare_answers(&serve_example(&python, system, app), system, "answers.json");
}

fn serve_example(python: &Python, system: &str, app: &str) -> Server {
    serve(python, &format!("examples/migrate/{system}/{app}"))
}

fn requests(system: &str) -> Vec<Value> {
    read(system, "requests.json")
}

fn read(system: &str, name: &str) -> Vec<Value> {
    serde_json::from_slice(&fs::read(format!("examples/migrate/{system}/{name}")).unwrap()).unwrap()
}

fn send(server: &Server, prefix: &str, request: &Value) -> Answer {
    let body = request["text"].as_str().map_or_else(|| request["body"].to_string(), str::to_owned);
    let path = request["path"].as_str().unwrap();
    server.request(&format!("POST {prefix}{path} HTTP/1.1\r\ncontent-type: application/json"), body.as_bytes())
}

/// An error has another body, so only its status counts. A request with `after` has another status, for a reason.
fn compare_answers(server: &Server, system: &str, recording: &str) {
    let (requests, answers) = (requests(system), read(system, recording));
    assert_eq!(requests.len(), answers.len(), "{system}: record the answers again");
    for (request, before) in requests.iter().zip(answers) {
        let after = send(server, "", request);
        let is_different = request.get("after").is_some();
        let status = if is_different { &request["after"] } else { &before["status"] };
        assert_eq!(*status, after.status, "{system}: {request}: {}", after.body);
        assert_eq!(is_different, before["status"] != after.status, "{system}: {request}: `after` and `why` are stale");
        if after.status == 200 {
            let mut expected = before["body"].clone();
            let names = request["ignore"].as_array().cloned().unwrap_or_else(|| vec![request["ignore"].clone()]);
            for name in names.iter().filter_map(Value::as_str) {
                assert!(expected.as_object_mut().unwrap().remove(name).is_some(), "{system}: {request}");
            }
            let after: Value = serde_json::from_str(&after.body).unwrap();
            assert_eq!(after, expected, "{system}: {request}");
        }
    }
}
