//! The files of `deploy/`, checked by the tools of those that read them: Kubernetes, compose, systemd, Prometheus, and
//! buildah, which makes the image that a test then serves from.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::node::Node;
use crate::process::run;
use crate::python::Python;
use crate::support::{Server, TEST_TIMEOUT, callboard, directory, without_settings};
use crate::tool::{BUILDAH, PROMTOOL, SYSTEMD};

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The seconds after this key in a text, as `40`, `40s` or `"40s"`.
fn seconds(text: &str, key: &str) -> u64 {
    let rest = text.split_once(key).unwrap_or_else(|| panic!("no `{key}`")).1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number after `{key}`"))
}

/// The seconds that a node has after its drain, by the operator's page: for one `on_stop` with its default, and 5 s.
fn after_drain() -> u64 {
    let api = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("python/src/callboard/_api.py"));
    seconds(&api, "def on_stop(fn: Any = None, /, *, timeout: str | float = \"") + 5
}

/// Kinds that Kubernetes does not have by itself.
const FOREIGN: [&str; 3] = ["PodMonitor", "ScaledObject", "InferencePool"];

/// Templates of KServe and Knative: their containers are those of pods, which the schema of Kubernetes knows.
const TEMPLATES: [(&str, &str); 2] = [("kserve", "serving-runtime.yaml"), ("knative", "service.yaml")];

#[test]
fn the_containers_of_kserve_and_knative_are_those_of_pods_and_end_in_time() {
    let Some(tools) = Python::with("deploy") else { return };
    let file = directory().join("pod");
    let validate = |containers: &str| {
        let pod = format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: callboard\nspec:\n{containers}");
        fs::write(&file, pod).unwrap();
        run(Command::new(tools.program("kubernetes-validate")).arg("--strict").arg(&file))
    };
    for (variant, template) in TEMPLATES {
        let path = deploy("kubernetes").join(variant);
        let mut kustomize = Command::new(tools.program("kubectl"));
        let text = run(kustomize.arg("kustomize").arg(&path)).unwrap();
        assert!(text.contains("readOnlyRootFilesystem: true") && text.contains("runAsNonRoot: true"), "{variant}");

        let template = read(&path.join(template));
        let (front, containers) = template.split_once("containers:\n").unwrap();
        let indent = front.len() - front.trim_end_matches(' ').len();
        let lines = containers.lines().map(|line| format!("  {}\n", &line[indent.min(line.len())..]));
        let containers = format!("  containers:\n{}", lines.collect::<String>());
        validate(&containers).unwrap();
        let misspelt = containers.replace("startupProbe", "startUpProbe").replace("livenessProbe", "liveness");
        assert!(validate(&misspelt).is_err(), "{variant}");
    }
    // The grace period of Kubernetes, and Knative's own.
    let kserve = read(&deploy("kubernetes/kserve/serving-runtime.yaml"));
    assert!(seconds(&kserve, "--drain-delay=") + seconds(&kserve, "--drain=") + after_drain() <= 30);
    let knative = read(&deploy("kubernetes/knative/service.yaml"));
    let setting = |name: &str| seconds(&knative, &format!("- name: {name}\n              value: "));
    let drained = setting("CALLBOARD_DRAIN_DELAY") + setting("CALLBOARD_DRAIN");
    assert!(seconds(&knative, "timeoutSeconds: ") >= drained + after_drain());
    // The program knows each flag and its value.
    let flags = kserve.lines().filter_map(|line| line.trim().strip_prefix("- --")).map(|flag| format!("--{flag}"));
    let flags: Vec<String> = ["serve", "examples/digits"].map(str::to_owned).into_iter().chain(flags).collect();
    run(&mut callboard(flags.iter().chain(&["--explain".to_owned()]))).unwrap();
}

#[test]
fn kubernetes_takes_every_manifest_and_a_misspelt_field_is_found() {
    let Some(tools) = Python::with("deploy") else { return };
    let directory = directory();
    let validate = |name: &str, text: &str| {
        // The kinds of operators have no schema there.
        let is_of_operator = |document: &str| FOREIGN.iter().any(|kind| document.contains(&format!("kind: {kind}\n")));
        let known = text.split("\n---\n").filter(|document| !is_of_operator(document));
        let file = directory.join(name);
        fs::write(&file, known.collect::<Vec<_>>().join("\n---\n")).unwrap();
        run(Command::new(tools.program("kubernetes-validate")).arg("--strict").arg(file))
    };
    for variant in ["deployment", "cluster", "example", "picked"] {
        let mut kustomize = Command::new(tools.program("kubectl"));
        let text = run(kustomize.arg("kustomize").arg(deploy("kubernetes").join(variant))).unwrap();
        validate(variant, &text).unwrap();

        let misspelt = text.replace("readOnlyRootFilesystem", "readOnlyRootFileSystem");
        assert!(validate("misspelt", &misspelt).unwrap_err().contains("readOnlyRootFileSystem"));
        // It would be every pod of the namespace.
        assert!(!text.contains("elector: {}"), "{variant}: a selector without a label\n{text}");
        let drained = seconds(&text, "CALLBOARD_DRAIN_DELAY: ") + seconds(&text, "CALLBOARD_DRAIN: ");
        let graces: Vec<u64> =
            text.match_indices("terminationGracePeriodSeconds: ").map(|(at, key)| seconds(&text[at..], key)).collect();
        assert!(
            !graces.is_empty() && graces.iter().all(|grace| *grace >= drained + after_drain()),
            "{variant}: {graces:?}"
        );
        for (at, _) in text.match_indices("- serve\n") {
            let args = text[at..].lines().map_while(|line| line.trim_start().strip_prefix("- "));
            let serve: Vec<&str> = args.collect();
            // The program knows each flag and its value.
            run(&mut callboard(serve.iter().chain(&["examples/digits", "--explain"]))).unwrap();
        }
    }
}

/// By what the registries of packages have of the operators. The definition of InferencePool is in none.
#[test]
fn operators_take_their_kinds_and_a_misspelt_field_is_found() {
    let Some((tools, node)) = Python::with("deploy").zip(Node::with("deploy")) else { return };
    let Some(kserve) = Python::with("kserve") else { return };
    let directory = node.scratch("manifests");
    let rendered = |variant: &str| {
        let file = directory.join(variant);
        let mut kustomize = Command::new(tools.program("kubectl"));
        fs::write(&file, run(kustomize.arg("kustomize").arg(deploy("kubernetes").join(variant))).unwrap()).unwrap();
        file
    };
    let misspelt = |file: &Path, field: &str| {
        let text = read(file).replace(field, &field.to_uppercase());
        assert!(text.contains(&field.to_uppercase()), "{field}");
        let misspelt = directory.join("misspelt");
        fs::write(&misspelt, text).unwrap();
        misspelt
    };

    let script = "deploy_kinds.mjs";
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external/scripts");
    fs::copy(scripts.join(script), directory.join(script)).unwrap();
    let (picked, knative) = (rendered("picked"), rendered("knative"));
    let check = |files: &[&Path]| {
        let mut command = Command::new("node");
        run(command.arg(script).args(files).current_dir(&directory))
    };
    let kinds = check(&[&picked, &knative]).unwrap();
    assert_eq!(kinds.lines().collect::<Vec<_>>(), ["ScaledObject", "PodMonitor", "Service"]);
    for (file, field) in [(&picked, "pollingInterval"), (&picked, "podMetricsEndpoints"), (&knative, "timeoutSeconds")]
    {
        check(&[&misspelt(file, field)]).unwrap_err();
    }

    let runtime = rendered("kserve");
    let check = |file: &Path| {
        let mut command = Command::new(kserve.program("python"));
        run(command.arg(scripts.join("deploy_kserve.py")).arg(file))
    };
    let kinds = check(&runtime).unwrap();
    assert_eq!(kinds.lines().collect::<Vec<_>>(), ["ServingRuntime", "InferenceService"]);
    for field in ["autoSelect", "readOnlyRootFilesystem", "storageUri"] {
        check(&misspelt(&runtime, field)).unwrap_err();
    }
}

#[test]
fn compose_takes_its_file_and_hadolint_finds_nothing_in_the_container_files() {
    let Some(tools) = Python::with("deploy") else { return };
    let mut check = Command::new(tools.program("check-jsonschema"));
    let check = check.args(["--builtin-schema", "vendor.compose-spec"]);
    run(check.arg(deploy("compose.yaml"))).unwrap();
    let file = directory().join("compose.yaml");
    fs::write(&file, read(&deploy("compose.yaml")).replace("read_only:", "readonly:")).unwrap();
    let mut check = Command::new(tools.program("check-jsonschema"));
    run(check.args(["--builtin-schema", "vendor.compose-spec"]).arg(file)).unwrap_err();

    let mut hadolint = Command::new(tools.program("hadolint"));
    run(hadolint.args(["Containerfile", "Containerfile.python"]).current_dir(deploy("image"))).unwrap();
}

/// Compose copies a secret from a variable into the root of its container, which it refuses if that is read-only.
#[test]
fn the_secrets_of_compose_are_files_as_every_container_is_read_only() {
    let compose = read(&deploy("compose.yaml"));
    let program = compose.split_once("\nx-program: ").unwrap().1.split_once("\n\n").unwrap().0;
    assert!(program.contains("\n  read_only: true\n"));
    let secrets = compose.split_once("\nsecrets:\n").unwrap().1.lines();
    let secrets = secrets.take_while(|line| line.starts_with([' ', '#'])).filter(|line| !line.trim().starts_with('#'));
    let secrets: Vec<(usize, &str)> = secrets.map(|line| (line.len() - line.trim_start().len(), line.trim())).collect();
    let names = secrets.iter().filter(|(indent, _)| *indent == 2).count();
    let sources: Vec<&str> = secrets.iter().filter(|(indent, _)| *indent > 2).map(|(_, line)| *line).collect();
    assert!(
        names > 0 && sources.len() == names && sources.iter().all(|line| line.starts_with("file: ")),
        "{secrets:?}"
    );
}

/// The unit and the file of compose give a node the time that its settings ask for.
#[test]
fn a_node_is_not_killed_before_its_drain_is_over() {
    let unit = read(&deploy("systemd/callboard.service"));
    let plan = run(&mut callboard(["serve", "examples/digits", "--explain"])).unwrap();
    let by_default = ["limits.drain_delay ", "limits.drain "].map(|name| {
        let line = plan.lines().find_map(|line| line.trim_start().strip_prefix(name)).unwrap();
        let digits = line.split_whitespace().next().and_then(|time| time.strip_suffix('s')).unwrap();
        digits.parse::<u64>().unwrap()
    });
    assert!(seconds(&unit, "TimeoutStopSec=") >= by_default.iter().sum::<u64>() + after_drain());
    let compose = read(&deploy("compose.yaml"));
    let drained = seconds(&compose, "CALLBOARD_DRAIN_DELAY: ") + seconds(&compose, "CALLBOARD_DRAIN: ");
    assert!(seconds(&compose, "stop_grace_period: ") >= drained + after_drain());
}

#[test]
fn systemd_takes_the_installed_unit_and_finds_little_exposed() {
    if !SYSTEMD.is_required_as("systemd-analyze") {
        return;
    }
    let root = directory();
    let mut install = Command::new(deploy("systemd/install"));
    run(install.arg(env!("CARGO_BIN_EXE_callboard")).env("DESTDIR", &root)).unwrap();
    assert!(root.join("usr/local/bin/callboard").exists() && root.join("etc/callboard/callboard.env").exists());

    // Its program is not in its place on this machine.
    let unit = read(&root.join("etc/systemd/system/callboard.service"));
    let unit = unit.replace("/usr/local/bin/callboard", env!("CARGO_BIN_EXE_callboard"));
    let file = root.join("callboard.service");
    fs::write(&file, &unit).unwrap();
    let verify = |file: &Path| run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(file));
    verify(&file).unwrap();
    let mut security = Command::new("systemd-analyze");
    run(security.args(["security", "--offline=true", "--threshold=20"]).arg(&file)).unwrap();
    fs::write(&file, unit.replace("ExecStart=", "ExecStrat=")).unwrap();
    verify(&file).unwrap_err();
}

/// The expressions of the dashboard, with the titles of their panels.
fn dashboard() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read(&deploy("monitoring/dashboard.json"))).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39 && dashboard["uid"] == "callboard");
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    let mut expressions = Vec::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is there twice");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(x + w <= 24, "{title}: wider than the page");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{title}: covers another panel");
        }
        let targets = panel["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert_eq!(targets.is_empty(), panel["type"] == "row", "{title}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            expressions.push((title.to_owned(), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let query = variable["query"]["query"].as_str().unwrap();
        let (metric, _) = query.strip_prefix("label_values(").and_then(|rest| rest.split_once(',')).unwrap();
        expressions.push((variable["name"].as_str().unwrap().to_owned(), metric.to_owned()));
    }
    expressions
}

/// The names of metrics of a node in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("callboard_")).collect()
}

/// The names of the samples of a page, also of families that have none yet.
fn exported(page: &str) -> BTreeSet<String> {
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let parts = |kind: &str| if kind == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
    families.flat_map(|(name, kind)| parts(kind).iter().map(move |part| format!("{name}{part}"))).collect()
}

/// The names that a gateway and a worker export after a call from one to the other and a refused connection: families by
/// label are on the page once they have a sample.
#[expect(clippy::disallowed_methods, reason = "another process cannot be notified")]
fn exported_by_nodes(wanted: &BTreeSet<&str>) -> BTreeSet<String> {
    let state = directory();
    let start = |args: &[&str]| {
        let base = ["serve", "--http", "127.0.0.1:0", "--admin", "none", "--log", "callboard_net=info"];
        let mut command = callboard(base.iter().chain(args));
        command.env("XDG_STATE_HOME", &state);
        Server::start(command)
    };
    let mut worker = start(&["examples/digits", "--quic", "127.0.0.1:0"]);
    let address = worker.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
    let gateway = start(&["examples/gateway", "--join", &address]);
    let picture = fs::read("examples/digits/seven.png").unwrap();
    // The worker has no authority, so it refuses.
    let authority = state.join("authority");
    let authority = authority.to_str().unwrap();
    run(&mut callboard(["cluster", "init", authority])).unwrap();
    let token = run(&mut callboard(["cluster", "token", authority])).unwrap();
    let member = state.join("member");
    let join = ["cluster", "join", token.trim(), &format!("quic://{address}"), "--to", member.to_str().unwrap()];
    run(&mut callboard(join)).unwrap_err();

    let start = Instant::now();
    loop {
        let answer = gateway.request("POST /digits HTTP/1.1\r\ncontent-type: image/png", &picture);
        let pages = [&worker, &gateway].map(|server| server.request("GET /metrics HTTP/1.1", b"").body);
        let exported: BTreeSet<String> = pages.iter().flat_map(|page| exported(page)).collect();
        let is_complete = wanted.iter().all(|name| exported.contains(*name));
        if (answer.status == 200 && is_complete) || start.elapsed() > TEST_TIMEOUT {
            return exported;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn alerts_and_dashboard_read_metrics_that_a_node_exports() {
    let alerts = read(&deploy("monitoring/alerts.yaml"));
    let autoscaler = read(&deploy("kubernetes/components/autoscaling/autoscaler.yaml"));
    assert_eq!(names(&autoscaler), BTreeSet::from(["callboard_in_flight"]));
    let scaled = read(&deploy("kubernetes/components/scaled-object/scaled-object.yaml"));
    let query = scaled.lines().find_map(|line| line.trim().strip_prefix("query: ")).unwrap().to_owned();
    assert_eq!(names(&query), BTreeSet::from(["callboard_queued", "callboard_running"]));
    let mut places =
        vec![("alerts".to_owned(), alerts), ("autoscaler".to_owned(), autoscaler), ("scaled object".to_owned(), query)];
    places.extend(dashboard());
    let wanted: BTreeSet<&str> = places.iter().flat_map(|(_, text)| names(text)).collect();
    let exported = exported_by_nodes(&wanted);
    assert!(exported.len() > 50 && !exported.contains("callboard_stage_restart_total"), "{exported:?}");
    for (place, text) in &places {
        let missing: Vec<&str> = names(text).into_iter().filter(|name| !exported.contains(*name)).collect();
        assert!(!names(text).is_empty() && missing.is_empty(), "{place}: no node exports {missing:?}");
    }
}

#[test]
fn the_page_explains_every_alert() {
    let alerts = read(&deploy("monitoring/alerts.yaml"));
    let alerts: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let page = read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations/kubernetes.md")));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `Callboard")?.split_once('`'));
    let explained: Vec<String> = rows.map(|(name, _)| format!("Callboard{name}")).collect();
    assert!(alerts.len() > 10);
    assert_eq!(explained, alerts);
}

#[test]
fn promtool_passes_the_alerts_their_cases_and_the_expressions_of_the_dashboard() {
    if !PROMTOOL.is_required_as("promtool") {
        return;
    }
    let alerts = deploy("monitoring");
    run(Command::new("promtool").args(["check", "rules", "alerts.yaml"]).current_dir(&alerts)).unwrap();
    run(Command::new("promtool").args(["test", "rules", "alerts_test.yaml"]).current_dir(&alerts)).unwrap();

    let rules: Vec<Value> = dashboard()
        .into_iter()
        .enumerate()
        .map(|(number, (_, expression))| {
            let expression = expression.replace("$__rate_interval", "1m");
            serde_json::json!({ "record": format!("panel_{number}"), "expr": expression })
        })
        .collect();
    // JSON is YAML.
    let file = directory().join("dashboard.yaml");
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    fs::write(&file, groups.to_string()).unwrap();
    run(Command::new("promtool").args(["check", "rules"]).arg(&file)).unwrap();
}

/// As a container runs it, for the user of the image and for one that the orchestrator has chosen.
#[cfg(target_os = "linux")]
#[test]
fn the_image_serves_as_any_user_on_a_read_only_root_and_ends_in_order() {
    if !BUILDAH.is_required_as("buildah") {
        return;
    }
    let directory = directory();
    let program = directory.join("callboard");
    // Debug information is nine tenths of it.
    run(Command::new("strip").arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_callboard"))).unwrap();
    let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let storage = ["--storage-driver".to_owned(), "vfs".to_owned(), "--root".to_owned(), path("storage")];
    let storage = [&storage[..], &["--runroot".to_owned(), path("run")]].concat();
    let mut build = Command::new(deploy("image/build"));
    let build = build.args(["-t", "callboard:tried"]).arg(&program);
    run(build.env("ENGINE", "buildah").env("BUILDAH_ARGS", storage.join(" "))).unwrap();
    let buildah = |args: &[&str]| run(Command::new("buildah").args(&storage).args(args)).unwrap();
    let container = buildah(&["from", "localhost/callboard:tried"]);
    assert_eq!(buildah(&["inspect", "--format", "{{.OCIv1.Config.User}}", &container]), "65532:65532");
    let root = buildah(&["mount", &container]);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external/scripts/read_only_root.sh");
    let app = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits");
    let picture = fs::read(app.join("seven.png")).unwrap();
    for user in ["65532", "1000650000"] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh"]).args([&script, Path::new(&root), &app]);
        command.args([user, "/usr/bin/callboard", "serve", "/app", "--http", "127.0.0.1:0", "--admin", "none"]);
        let mut server = Server::start(without_settings(command));
        let answer = server.request("POST /digits HTTP/1.1\r\ncontent-type: image/png", &picture);
        assert!(answer.status == 200 && answer.body.contains("\"label\":\"7\""), "{answer:?}");
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
    }
    buildah(&["umount", &container]);
    fs::remove_dir_all(&directory).unwrap();
}
