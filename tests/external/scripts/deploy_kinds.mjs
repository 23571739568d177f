// Kinds of KEDA, of the Prometheus operator and of Knative, by the schemas of their definitions. These let unknown
// fields pass, so the types that were made of them are asked as well. Arguments: manifests. Prints the kinds in their
// order.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";

import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { Service } from "@kubernetes-models/knative/serving.knative.dev/v1/Service";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor";
import ts from "typescript";
import { parseAllDocuments } from "yaml";

const KINDS = {
  "keda.sh/v1alpha1": ["@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject", ScaledObject],
  "monitoring.coreos.com/v1": ["@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor", PodMonitor],
  "serving.knative.dev/v1": ["@kubernetes-models/knative/serving.knative.dev/v1/Service", Service],
};

const lines = [];
for (const file of process.argv.slice(2)) {
  for (const document of parseAllDocuments(readFileSync(file, "utf8"))) {
    const manifest = document.toJS();
    const [module, Model] = KINDS[manifest?.apiVersion] ?? [];
    if (!Model) continue;
    assert.equal(manifest.kind, Model.kind);
    new Model(manifest).validate();
    const json = JSON.stringify(manifest);
    lines.push(`import type { I${manifest.kind} as Kind${lines.length} } from "${module}";`);
    lines.push(`export const manifest${lines.length} = ${json} satisfies Kind${lines.length - 1};`);
    console.log(manifest.kind);
  }
}

writeFileSync("manifests.ts", lines.join("\n"));
const { ESNext } = ts.ModuleKind;
const options = { module: ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler, noEmit: true, skipLibCheck: true, strict: true };
const found = ts.getPreEmitDiagnostics(ts.createProgram(["manifests.ts"], options));
assert.deepEqual(found.map((one) => ts.flattenDiagnosticMessageText(one.messageText, "\n")), []);
