// Drives a cluster with the JavaScript client: an informer, create, patch, apply, exec, errors, delete.
// Arguments: kubeconfig, namespace.

import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import * as k8s from '@kubernetes/client-node';

const [kubeconfig, namespace] = process.argv.slice(2);
const LIMIT_MS = 60_000;
const config = new k8s.KubeConfig();
config.loadFromFile(kubeconfig);
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);

/** Waits for a promise, but not for ever. */
function within(what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${LIMIT_MS} ms`)), LIMIT_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** The events of an informer, in order, and a way to wait for one. */
class Events {
  events = [];
  waiting = [];
  add(verb, object) {
    this.events.push([verb, object]);
    this.waiting = this.waiting.filter((matches) => !matches(verb, object));
  }
  until(what, holds) {
    if (this.events.some(([verb, object]) => holds(verb, object))) return Promise.resolve();
    const found = new Promise((resolve) => {
      this.waiting.push((verb, object) => holds(verb, object) && (resolve(), true));
    });
    return within(what, found);
  }
}

const labelSelector = 'made=javascript';
const events = new Events();
const informer = k8s.makeInformer(
  config,
  `/api/v1/namespaces/${namespace}/pods`,
  () => core.listNamespacedPod({ namespace, labelSelector }),
  labelSelector,
);
for (const verb of ['add', 'update', 'delete']) informer.on(verb, (pod) => events.add(verb, pod));
informer.on('error', (error) => {
  throw error;
});
await informer.start();

const body = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'js', labels: { made: 'javascript' } },
  spec: {
    terminationGracePeriodSeconds: 1,
    containers: [{ name: 'c', image: 'localhost/knarr/busybox:1', command: ['sleep', '3600'] }],
  },
};
const created = await core.createNamespacedPod({ namespace, body });
assert.equal(created.status.phase, 'Pending');
assert.ok(created.metadata.creationTimestamp instanceof Date);
await events.until('running', (_, pod) => pod.status.phase === 'Running');
assert.equal(events.events[0][0], 'add');
console.log('running');

// Each form of a patch.
const patched = await core.patchNamespacedPod(
  { name: 'js', namespace, body: [{ op: 'add', path: '/metadata/labels/x', value: 'y' }] },
  k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.JsonPatch),
);
assert.deepEqual(patched.metadata.labels, { made: 'javascript', x: 'y' });
await core.patchNamespacedPod(
  { name: 'js', namespace, body: { metadata: { labels: { x: null } } } },
  k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.MergePatch),
);
const merged = await core.patchNamespacedPod(
  { name: 'js', namespace, body: { spec: { containers: [{ name: 'c', image: 'localhost/knarr/web:1' }] } } },
  k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.StrategicMergePatch),
);
assert.deepEqual(merged.metadata.labels, { made: 'javascript' });
assert.deepEqual(merged.spec.containers[0].command, ['sleep', '3600']);
await events.until('patched', (verb, pod) => verb === 'update' && pod.spec.containers[0].image.endsWith('web:1'));
// Another image restarts the container: until then it may be between its two processes, where nothing can be executed.
await events.until('restarted', (_, { status }) => {
  const [container] = status.containerStatuses ?? [];
  return container?.restartCount === 1 && container.state.running !== undefined;
});
console.log('patched');

// A manifest of several objects, applied on the server's side, twice.
const manifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: js, namespace: ${namespace}}
data: {a: "1"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: js, namespace: ${namespace}}
spec:
  replicas: 0
  selector: {matchLabels: {app: js}}
  template:
    metadata: {labels: {app: js}}
    spec: {containers: [{name: c, image: "localhost/knarr/busybox:1"}]}
`;
for (const round of [1, 2]) {
  for (const object of k8s.loadAllYaml(manifest)) {
    const apply = k8s.PatchStrategy.ServerSideApply;
    const applied = await objects.patch(object, undefined, undefined, 'js', true, apply);
    assert.equal(applied.metadata.name, 'js');
    assert.equal(applied.metadata.managedFields[0].operation, 'Apply', `round ${round}`);
  }
}
const deployment = await apps.readNamespacedDeployment({ name: 'js', namespace });
assert.equal(deployment.spec.strategy.type, 'RollingUpdate');
const map = await core.readNamespacedConfigMap({ name: 'js', namespace });
map.data = { a: '2' };
const replaced = await core.replaceNamespacedConfigMap({ name: 'js', namespace, body: map });
assert.deepEqual(replaced.data, { a: '2' });
console.log('applied');

// Errors have a code and a reason.
const rejected = async (code, reason, request) => {
  const error = await request.then(() => null, (error) => error);
  assert.equal(error?.code, code, `${error}`);
  assert.equal(JSON.parse(error.body).reason, reason);
};
await rejected(404, 'NotFound', core.readNamespacedPod({ name: 'absent', namespace }));
await rejected(409, 'AlreadyExists', core.createNamespacedPod({ namespace, body }));
await rejected(409, 'Conflict', core.replaceNamespacedConfigMap({ name: 'js', namespace, body: map }));
await rejected(422, 'Invalid', core.createNamespacedConfigMap({ namespace, body: { metadata: { name: 'Not A Name' } } }));
console.log('rejected');

const out = new PassThrough();
let output = '';
out.on('data', (chunk) => (output += chunk));
const status = await within(
  'exec',
  new Promise((resolve, reject) => {
    const exec = new k8s.Exec(config);
    exec.exec(namespace, 'js', 'c', ['sh', '-c', 'echo ahoy; exit 3'], out, null, null, false, resolve).catch(reject);
  }),
);
assert.equal(status.status, 'Failure');
assert.deepEqual(status.details.causes, [{ reason: 'ExitCode', message: '3' }]);
console.log('exec:', output.trim());

await core.deleteNamespacedPod({ name: 'js', namespace });
await events.until('deleted', (verb) => verb === 'delete');
await rejected(404, 'NotFound', core.readNamespacedPod({ name: 'js', namespace }));
await informer.stop();
console.log('deleted');
process.exit(0);
