// Draws the events of v1/live: see crates/http/src/admin/live.
'use strict';

const KEPT = 60;
const $ = id => document.getElementById(id);
const past = new Map();
let isPaused = false;
let isLooking = false;

// Elements, never HTML: names and reasons are text of others.
function make(tag, attributes = {}, ...children) {
  const svg = ['svg', 'polyline', 'circle'].includes(tag);
  const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

// Numbers.
const shown = (value, digits = 1) => value == null ? '–' : value.toLocaleString('en', { maximumFractionDigits: digits });
const millis = value => value == null ? '–' : value < 1000 ? `${shown(value, value < 10 ? 2 : 0)} ms` : `${shown(value / 1000)} s`;
const span = s => s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
const bytes = value => value == null ? '–' : value < 2 ** 30 ? `${shown(value / 2 ** 20, 0)} MiB` : `${shown(value / 2 ** 30)} GiB`;

function remember(key, value) {
  if (!past.has(key)) past.set(key, []);
  const values = past.get(key);
  values.push(value ?? 0);
  if (values.length > KEPT) values.shift();
}

// The last minute of a figure.
function spark(key, what) {
  const values = past.get(key) ?? [];
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, at) => `${2 * (KEPT - values.length + at)},${24 - 22 * value / most}`).join(' ');
  const label = `${what}, last minute: at most ${shown(Math.max(...values, 0))}, now ${shown(values.at(-1) ?? 0)}`;
  return make('svg', { class: 'spark', viewBox: '0 0 120 26', role: 'img', 'aria-label': label, preserveAspectRatio: 'none' },
    make('polyline', { class: 'ground', points: '0,25 120,25' }), make('polyline', { points }));
}

// A dot for each replica, full when it is busy.
function dots(stage) {
  if (stage.replicas_of) return `of ${stage.replicas_of}`;
  if (stage.replicas == null) return '–';
  const label = `${stage.busy} of ${stage.replicas} busy`;
  const text = stage.target > stage.replicas ? ` of ${stage.target}` : '';
  if (stage.replicas === 0 || stage.replicas > 16) return `${label}${text}`;
  const circles = Array.from({ length: stage.replicas }, (_, at) =>
    make('circle', { cx: 8 + 14 * at, cy: 8, r: 5, class: at < stage.busy ? 'busy' : '' }));
  return make('span', {}, make('svg', { class: 'dots', viewBox: `0 0 ${2 + 14 * stage.replicas} 16`, role: 'img', 'aria-label': label }, ...circles), text);
}

function queue(stage) {
  if (stage.queue_limit == null) return '–';
  const label = `${shown(stage.queued)} of ${shown(stage.queue_limit)} waiting`;
  return make('span', {}, make('meter', { max: stage.queue_limit, value: stage.queued, high: stage.queue_limit * .8, 'aria-label': label }),
    ` ${shown(stage.queued)}`);
}

const STATES = { ready: 'good', remote: 'good', up: 'good', sleeping: 'dim', left: 'dim', failed: 'bad', unreachable: 'bad', down: 'bad' };
const state = name => make('span', { class: STATES[name] ?? 'warn' }, name.replaceAll('_', ' '));
const failed = rate => rate == null ? '–' : rate > 0 ? make('strong', { class: 'bad' }, shown(rate)) : '0';

// A column in which nothing is known is left out.
function table(caption, more, columns, rows) {
  const all = columns.map(([name, kind, cell]) => ({ name, kind, cells: rows.map(row => cell(row) ?? '–') }));
  const known = all.filter(({ cells }) => cells.some(cell => cell !== '–'));
  if (known.length === 0) return null;
  const heads = known.map(({ name, kind }) => make('th', { scope: 'col', class: kind }, name));
  const body = rows.map((_, at) => make('tr', {}, ...known.map(({ kind, cells }, column) =>
    column === 0 ? make('th', { scope: 'row' }, cells[at]) : make('td', { class: kind }, cells[at]))));
  const title = more ? `${caption} (and ${more} more)` : caption;
  return make('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    make('table', {}, make('caption', {}, title), make('thead', {}, make('tr', {}, ...heads)), make('tbody', {}, ...body)));
}

const ROUTES = [
  ['route', '', route => route.name + (route.closed ? ' (closing)' : '')],
  ['calls/s', 'n', route => shown(route.calls_per_s)],
  ['last minute', '', route => spark(`route ${route.name}`, 'calls per second')],
  ['failed/s', 'n', route => failed(route.failed_per_s)],
  ['p50', 'n', route => millis(route.p50_ms)],
  ['p99', 'n', route => millis(route.p99_ms)],
  ['pipeline', 'wrap', route => make('span', {}, make('span', { class: 'chip' }, route.pipeline),
    route.rollout ? ` ${route.rollout.state}, ${shown(route.rollout.share * 100)} %` : null)],
];
const STAGES = [
  ['stage', '', stage => stage.name],
  ['state', '', stage => state(stage.state)],
  ['replicas', '', dots],
  ['queue', '', queue],
  ['last minute', '', stage => stage.queue_limit == null ? '–' : spark(`stage ${stage.name}`, 'waiting calls')],
  ['waits p99', 'n', stage => millis(stage.waits_p99_ms)],
  ['mean batch', 'n', stage => stage.mean_batch == null ? '–' : `${shown(stage.mean_batch)} of ${stage.max_batch}`],
  ['batch takes', 'n', stage => stage.batches ? millis(stage.batch_ms) : '–'],
  ['cpu', 'n', stage => stage.cpu == null ? '–' : `${shown(stage.cpu * 100, 0)} %`],
  ['memory', 'n', stage => bytes(stage.memory_bytes)],
  ['restarts', 'n', stage => shown(stage.restarts)],
  ['why', 'wrap', stage => stage.reason ? make('span', { class: 'bad' }, stage.reason) : stage.note],
];
const PEERS = [
  ['peer', '', peer => peer.node || peer.address],
  ['address', '', peer => peer.address],
  ['link', '', peer => peer.connected_s == null ? state('down') : peer.silent ? state('silent')
    : make('span', { class: 'good' }, `up ${span(peer.connected_s)}`)],
  ['stages', 'wrap', peer => peer.stages.join(', ')],
];
const MEMBERS = [
  ['node', '', member => member.name + (member.is_this_node ? ' (this node)' : '')],
  ['address', '', member => member.address],
  ['state', '', member => state(member.state)],
  ['phase', '', member => member.phase == null ? '–' : state(member.phase.replace('_', ' '))],
  ['since', 'n', member => member.since ? new Date(member.since * 1000).toLocaleTimeString() : '–'],
  ['version', '', member => member.version ?? '–'],
  ['routes', 'n', member => shown(member.routes)],
  ['stages', 'n', member => shown(member.stages)],
  ['busy', 'n', member => shown(member.busy)],
  ['queue', '', queue],
  ['last minute', '', member => member.queue_limit == null ? '–' : spark(`member ${member.name}`, 'waiting calls')],
  ['replicas', 'wrap', member => member.replicas?.join(', ') || '–'],
];
const DEVICES = [
  ['device', '', device => `${device.index}: ${device.name}`],
  ['state', '', device => state(device.lost ? 'down' : 'up')],
  ['in use', 'n', device => device.utilisation == null ? '–' : `${shown(device.utilisation * 100, 0)} %`],
  ['memory', 'n', device => `${bytes(device.memory_used)} of ${bytes(device.memory_total)}`],
  ['temperature', 'n', device => device.temperature == null ? '–' : `${shown(device.temperature, 0)} °C`],
];
const ACTORS = [
  ['actor', '', actor => actor.name],
  ['state', '', actor => state(actor.state)],
  ['keys', 'n', actor => shown(actor.active_keys)],
  ['waiting', 'n', actor => `${shown(actor.waiting)} of ${shown(actor.mailbox)}`],
  ['restarts', 'n', actor => shown(actor.restarts)],
];

function note(sample) {
  for (const route of sample.routes) remember(`route ${route.name}`, route.calls_per_s);
  for (const stage of sample.stages) remember(`stage ${stage.name}`, stage.queued);
  for (const member of sample.members) remember(`member ${member.name}`, member.queued);
  remember('calls', sample.in_flight);
}

function draw(sample) {
  const colour = { ready: 'good', draining: 'warn' }[sample.state] ?? 'bad';
  // A screen reader says it when it changes.
  if ($('state').textContent !== sample.state) $('state').replaceChildren(make('span', { class: colour }, sample.state));
  $('facts').textContent = `${sample.version} · up ${span(sample.uptime_s)} · ${shown(sample.in_flight)} calls in flight`
    + (sample.oldest_ms == null ? '' : `, the oldest for ${millis(sample.oldest_ms)}`)
    + ` · ${shown(sample.admitted)} admitted, ${shown(sample.refused)} refused`;
  document.title = `${sample.state} · Callboard`;
  const more = sample.more;
  const tables = [
    table('Routes', more.routes, ROUTES, sample.routes), table('Stages', more.stages, STAGES, sample.stages),
    table('Cluster', more.members, MEMBERS, sample.members), table('Links', more.peers, PEERS, sample.peers),
    table('Devices', 0, DEVICES, sample.devices),
    table('Actors', more.actors, ACTORS, sample.actors),
  ].filter(one => one);
  // The keyboard stays where it is.
  const focused = document.activeElement?.getAttribute('aria-label');
  const scrolled = new Map([...document.querySelectorAll('.scroll')].map(one => [one.getAttribute('aria-label'), one.scrollLeft]));
  $('main').replaceChildren(...tables);
  for (const one of document.querySelectorAll('.scroll')) {
    one.scrollLeft = scrolled.get(one.getAttribute('aria-label')) ?? 0;
    if (focused && one.getAttribute('aria-label') === focused) one.focus({ preventScroll: true });
  }
  $('main').hidden = false;
}

function lost(why) {
  $('state').replaceChildren(make('span', { class: 'bad' }, why));
  document.title = 'no answer · Callboard';
}

async function look() {
  const key = sessionStorage.getItem('key');
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const answer = await fetch('v1/live', { headers, cache: 'no-store' });
  if (answer.status === 401 || answer.status === 403) {
    $('refused').textContent = key ? 'This key was refused.' : '';
    sessionStorage.removeItem('key');
    $('ask').hidden = false;
    $('key').focus();
    lost('a key is needed');
    return false;
  }
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).message ?? `status ${answer.status}`);
  $('ask').hidden = true;
  past.clear();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ''; ;) {
    const { value, done } = await reader.read();
    if (done) return true;
    text += value;
    const events = text.split('\n\n');
    text = events.pop();
    const samples = events.filter(event => event.startsWith('data: ')).map(event => JSON.parse(event.slice(6)));
    samples.forEach(note);
    if (samples.length > 0 && !isPaused) draw(samples.at(-1));
  }
}

// A second one would draw everything twice.
async function keepLooking() {
  if (isLooking) return;
  isLooking = true;
  for (;;) {
    try {
      if (!await look()) break;
      lost('the stream ended: looking again');
    } catch (error) {
      lost(`no answer: ${error.message}`);
    }
    await new Promise(resolve => setTimeout(resolve, 1000));
  }
  isLooking = false;
}

$('ask').addEventListener('submit', event => {
  event.preventDefault();
  sessionStorage.setItem('key', $('key').value);
  $('key').value = '';
  keepLooking();
});
$('pause').addEventListener('click', () => {
  isPaused = !isPaused;
  $('pause').setAttribute('aria-pressed', isPaused);
});
keepLooking();
