"""Has openapi-generator write clients of a document, compiles them, and calls a route, a model and a function with each.

    openapi_generator.py DOCUMENT DIRECTORY BASE GO

DIRECTORY lies below the packages of `requirements/generators.json`, among them TypeScript's compiler. The client in Rust is made and
compiled where there is a `cargo`; what it calls is not different from the others.
"""

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def main(document, directory, base, go):
    directory = Path(directory)
    seven = base64.b64encode(Path("examples/digits/seven.png").read_bytes()).decode()

    def write(generator, *properties):
        command = Path(sys.executable).with_name("openapi-generator-cli")
        run(command, "generate", "-i", document, "-g", generator, "-o", directory / generator, *properties)

    write("python")
    sys.path.insert(0, str(directory / "python"))
    import openapi_client as made

    with made.ApiClient(made.Configuration(host=base)) as client:
        routes, models = made.RoutesApi(client), made.ModelsApi(client)
        assert routes.post_digits(made.Image(image=seven)).label == "7"
        assert routes.call("digits", made.FunctionCall(kwargs={"image": seven}))["label"] == "7"
        picture = made.InferenceInput(
            name="image", datatype="BYTES", shape=[1], data=[seven], parameters={"content_type": "base64"}
        )
        outputs = models.infer("digits", made.InferenceRequest(inputs=[picture])).outputs
        assert [output.data for output in outputs if output.name == "label"] == [["7"]], outputs

    write("typescript-fetch")
    shutil.copy(HERE / "generated_openapi_fetch.ts", directory)
    (directory / "seven.b64").write_text(seven)
    compiler = directory.parent.parent / "node_modules" / ".bin" / "tsc"
    options = "--strict --target es2022 --lib es2022,dom --module commonjs --moduleResolution node10 --skipLibCheck --types node"
    run(compiler, *options.split(), "--outDir", "cjs", "generated_openapi_fetch.ts", cwd=directory)
    (directory / "cjs" / "package.json").write_text('{"type":"commonjs"}')
    told = run("node", "cjs/generated_openapi_fetch.js", base, cwd=directory)
    assert told == "7 7 7", told

    write("go", "--additional-properties=packageName=client,withGoMod=false")
    made = directory / "go"
    # Its tests are empty, and need modules from elsewhere.
    shutil.rmtree(made / "test")
    (made / "go.mod").write_text("module made\n\ngo 1.24\n")
    (made / "call").mkdir()
    shutil.copy(HERE / "generated.go", made / "call" / "main.go")
    kept = {name: str(Path(go).parent.parent / f"go-{name}") for name in ("cache", "path")}
    settings = {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOCACHE": kept["cache"], "GOPATH": kept["path"]}
    settings = os.environ | settings
    run(go, "-C", made, "vet", "./...", env=settings)
    told = run(go, "-C", made, "run", "./call", base, seven, env=settings)
    assert told == "7 7 7", told

    if shutil.which("cargo"):
        write("rust")
        # Its own workspace, whatever lies above.
        manifest = directory / "rust" / "Cargo.toml"
        manifest.write_text(manifest.read_text() + "\n[workspace]\n")
        run("cargo", "build", "--quiet", "--manifest-path", manifest, "--target-dir", directory / "target")


main(*sys.argv[1:])
