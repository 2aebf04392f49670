// The script of the page. It shows what the handler sends, as text: nothing here makes HTML of a text, and the policy of
// the page would refuse it.
'use strict';

const $ = (id) => document.getElementById(id);

// put sets a text, and leaves it alone if it is the same: a selection stays, and a screen reader says it once.
const put = (el, text) => { if (el.textContent !== text) el.textContent = text; };

const make = (tag, className, parent) => {
  const el = document.createElement(tag);
  if (className) el.className = className;
  if (parent) parent.append(el);
  return el;
};

// span returns a duration of so many milliseconds, for people.
const span = (ms) => {
  if (ms < 0) return '–';
  if (ms < 10) return ms.toFixed(1) + ' ms';
  if (ms < 1000) return Math.round(ms) + ' ms';
  if (ms < 10000) return (ms / 1000).toFixed(1) + ' s';
  const s = Math.floor(ms / 1000);
  if (s < 60) return s + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min ' + s % 60 + ' s';
  if (s < 172800) return Math.floor(s / 3600) + ' h ' + Math.floor(s % 3600 / 60) + ' min';
  return Math.floor(s / 86400) + ' d ' + Math.floor(s % 86400 / 3600) + ' h';
};

const two = (n) => String(n).padStart(2, '0');
const clock = (at) => {
  const d = new Date(at);
  const time = [d.getHours(), d.getMinutes(), d.getSeconds()].map(two).join(':');
  return d.toDateString() === new Date().toDateString() ? time : d.getFullYear() + '-' + two(d.getMonth() + 1) + '-' + two(d.getDate()) + ' ' + time;
};

const waiting = (n) => n === 0 ? '' : n === 1 ? '1 waits' : n + ' wait';

// A cell is filled by a function of its <td>, which was called before with other rows.
const cell = {
  text: (td, text) => put(td, text),
  bdi: (td, text) => put(td.querySelector('bdi') || make('bdi', '', td), text),
  name: (td, text, query) => {
    if (!query) return cell.bdi(td, text);
    const a = td.querySelector('a') || make('a', '', td);
    const href = '#' + query;
    if (a.getAttribute('href') !== href) a.setAttribute('href', href);
    put(a.querySelector('bdi') || make('bdi', '', a), text);
  },
  small: (td, text, className = 'small') => {
    let el = td.querySelector('.' + className.split(' ')[0]);
    if (!el && !text) return;
    el = el || make('p', className, td);
    put(el, text);
    el.hidden = !text;
  },
  at: (td, at) => {
    const el = td.querySelector('time') || make('time', '', td);
    put(el, clock(at));
    const iso = new Date(at).toISOString();
    if (el.title !== iso) { el.title = iso; el.dateTime = iso; }
  },
  state: (td, level, text) => {
    const el = td.querySelector('.state') || make('span', 'state', td);
    el.dataset.level = level;
    put(el, text);
  },
  bar: (td, left, of, level) => {
    let bar = td.querySelector('.bar');
    if (!bar) {
      bar = make('div', 'bar', td);
      bar.setAttribute('role', 'meter');
      bar.setAttribute('aria-label', 'Time left');
      bar.setAttribute('aria-valuemin', '0');
      make('i', '', bar);
      make('span', 'left', td);
    }
    bar.setAttribute('aria-valuemax', String(Math.round(of)));
    bar.setAttribute('aria-valuenow', String(Math.round(left)));
    bar.setAttribute('aria-valuetext', span(left) + ' of ' + span(of));
    bar.dataset.level = level;
    bar.firstChild.style.width = Math.max(0, Math.min(100, 100 * left / of)) + '%';
    put(td.querySelector('.left'), span(left));
  },
  link: (td, url) => {
    let a = td.querySelector('a');
    const fine = /^https?:\/\//i.test(url); // the handler has made it so
    if (!fine) { if (a) a.remove(); return; }
    if (!a) {
      a = make('a', '', td);
      a.rel = 'noopener noreferrer';
      a.target = '_blank';
      a.textContent = 'Open trace';
    }
    if (a.href !== url) a.href = url;
  },
};

// fill shows rows in a table, and keeps the elements of rows that stay.
const fill = (table, rows, columns) => {
  const body = table.tBodies[0];
  const labels = [...table.tHead.rows[0].cells].map((th) => th.textContent);
  const old = new Map([...body.rows].map((tr) => [tr.dataset.key, tr]));
  rows.forEach((row, i) => {
    let tr = old.get(String(row.key));
    if (tr) {
      old.delete(String(row.key));
    } else {
      tr = make('tr');
      tr.setAttribute('role', 'row');
      tr.dataset.key = row.key;
      columns.forEach((column, j) => {
        const td = make('td', table.tHead.rows[0].cells[j].className, tr);
        td.setAttribute('role', 'cell');
        td.dataset.label = labels[j];
      });
    }
    tr.dataset.level = row.level || 'good';
    columns.forEach((column, j) => column(tr.cells[j], row));
    if (body.rows[i] !== tr) body.insertBefore(tr, body.rows[i] || null);
  });
  for (const tr of old.values()) tr.remove();
  table.hidden = rows.length === 0;
};

const nodeColumns = [
  (td, n) => { cell.bdi(td, n.number + '  ' + n.addr); },
  (td, n) => {
    cell.state(td, n.level, n.state + (n.quarantine > 0 ? ', ' + span(n.quarantine) + ' left' : ''));
    cell.small(td, n.problem);
  },
  (td, n) => cell.text(td, n.roundTrip > 0 && n.level !== 'bad' ? span(n.roundTrip) : '–'),
  (td, n) => cell.text(td, n.roundTrip > 0 && n.level !== 'bad' ? (n.offset < 0 ? '−' : '+') + span(Math.abs(n.offset)) : '–'),
  (td, n) => cell.text(td, n.version || '–'),
];

const leaseColumns = [
  (td, l) => { cell.name(td, l.name, l.query); cell.small(td, l.kind === 'exclusive' ? '' : l.kind); },
  (td, l) => cell.bar(td, l.remaining, l.ttl, l.level),
  (td, l) => { cell.state(td, l.level, l.margin + (l.level === 'good' ? '' : ', at risk')); cell.small(td, l.problem); },
  (td, l) => { cell.state(td, l.waiters > 0 || l.asked ? 'warn' : 'none', waiting(l.waiters) || '–'); cell.small(td, l.asked); },
  (td, l) => cell.text(td, span(l.held)),
  (td, l) => cell.text(td, l.token),
];

const eventColumns = [
  (td, e) => cell.at(td, e.at),
  (td, e) => cell.state(td, e.level, e.what),
  (td, e) => cell.name(td, e.name, e.query),
  (td, e) => cell.bdi(td, e.text),
];

const holderColumns = [
  (td, h) => cell.text(td, h.slot),
  (td, h) => {
    cell.bdi(td, h.label || 'no label');
    cell.small(td, h.owner ? 'owner ' + h.owner + '…' : '', 'owner small');
    cell.small(td, h.notes, 'notes small');
  },
  (td, h) => {
    cell.bdi(td, span(h.held));
    cell.small(td, h.since ? 'since ' + clock(h.since) : '');
  },
  (td, h) => cell.text(td, h.ttl < 0 ? 'never' : h.ttl === 0 ? '–' : span(h.ttl)),
  (td, h) => cell.text(td, h.token || '–'),
  (td, h) => cell.link(td, h.trace),
];

const queueColumns = [
  (td, w) => { cell.bdi(td, w.process); cell.small(td, w.own ? 'this process' : ''); },
  (td, w) => { cell.bdi(td, span(w.waited)); cell.small(td, 'since ' + clock(w.since)); },
  (td, w) => cell.bdi(td, w.wants),
];

const answerColumns = [
  (td, a) => cell.bdi(td, a.number + '  ' + a.addr),
  (td, a) => { cell.state(td, a.level, a.says); cell.small(td, a.problem); },
  (td, a) => cell.text(td, a.ttl > 0 ? span(a.ttl) : a.ttl < 0 ? 'never' : '–'),
];

const listColumns = [
  (td, r) => cell.name(td, r.name, r.query),
  (td, r) => cell.bdi(td, r.holder),
  (td, r) => cell.text(td, span(r.held)),
  (td, r) => { cell.state(td, r.waiters > 0 ? 'warn' : 'none', waiting(r.waiters) || '–'); },
];

const showState = (s) => {
  put($('process'), s.process + ' ·');
  $('verdict').dataset.level = s.verdict.level;
  put($('verdict-text'), s.verdict.text);
  put($('verdict-detail'), s.verdict.detail);
  document.title = (s.verdict.level === 'good' ? '' : s.verdict.level === 'warn' ? '! ' : '!! ') + 'quorumlock';
  fill($('nodes'), s.nodes.map((n) => ({ ...n, key: n.number })), nodeColumns);
  fill($('leases'), s.leases, leaseColumns);
  $('leases-empty').hidden = s.total > 0;
  put($('leases-count'), s.total > s.leases.length ? s.total + ', the first ' + s.leases.length + ' by margin' : s.total ? String(s.total) : '');
  fill($('losses'), s.losses, eventColumns);
  $('losses-empty').hidden = s.lost > 0;
  put($('losses-count'), s.lost > s.losses.length ? s.lost + ', the last ' + s.losses.length : s.lost ? String(s.lost) : '');
  fill($('events'), s.events, eventColumns);
  $('events-empty').hidden = s.events.length > 0;
  put($('events-count'), s.dropped > 0 ? s.dropped + ' were dropped: too many at a time' : '');
};

const showName = (n) => {
  const box = $('name');
  box.hidden = false;
  box.dataset.level = n.level;
  put($('name-title').querySelector('bdi'), n.name);
  put($('name-text'), n.text);
  put($('name-here'), n.here + (n.fence ? (n.here ? ' ' : '') + 'The highest token so far is ' + n.fence + '.' : ''));
  put($('name-error'), n.error);
  $('holders').classList.toggle('plain', n.slots === 0);
  fill($('holders'), n.holders, holderColumns);
  if (n.more > 0) put($('name-here'), 'And ' + n.more + ' more. ' + $('name-here').textContent);
  fill($('queue'), n.queue, queueColumns);
  put($('queue-more'), n.queue.length > 0 && n.waiters > n.queue.length ? 'And ' + (n.waiters - n.queue.length) + ' more.' : '');
  fill($('answers'), n.nodes.map((a) => ({ ...a, key: a.number })), answerColumns);
};

const showList = (l) => {
  put($('list-title').querySelector('bdi'), l.prefix);
  put($('list-text'), (l.more ? 'The first ' + l.rows.length + ' that were found; there are more. ' : '') +
    (l.rows.length === 0 && !l.error ? 'No name is held or waited for. ' : '') + 'As of ' + clock(l.at) + ', in ' + span(l.took) + '.');
  put($('list-error'), l.error);
  fill($('listed'), l.rows.map((r) => ({ ...r, key: r.query })), listColumns);
};

// What is looked at stands in the address, so that it can be sent to a colleague.
const subject = () => new URLSearchParams(location.hash.slice(1));

let source = null;   // the stream
let heard = 0;       // when it last said something, by performance.now()
let reopen = 0;      // the timer of the next attempt
let closed = false;  // the Manager is closed, as far as is known

const listen = () => {
  clearTimeout(reopen);
  if (source) source.close();
  source = null;
  if (document.hidden) return; // a hidden tab costs nothing
  const want = subject(), query = new URLSearchParams();
  for (const key of ['name', 'permits']) if (want.get(key)) query.set(key, want.get(key));
  const mine = source = new EventSource('events?' + query);
  const hears = (event, show) => mine.addEventListener(event, (e) => {
    if (mine !== source) return;
    heard = performance.now();
    show(JSON.parse(e.data));
    stale();
  });
  hears('state', (s) => {
    closed = false;
    put($('as-of'), clock(s.at));
    showState(s);
  });
  hears('name', showName);
  hears('closed', () => { closed = true; mine.close(); reopen = setTimeout(listen, 3000); });
  mine.onerror = () => { // it comes back by itself, unless the answer was no stream
    if (mine === source && mine.readyState === EventSource.CLOSED) { clearTimeout(reopen); reopen = setTimeout(listen, 3000); }
  };
};

// stale says so when the page is no longer what is.
const stale = () => {
  const silent = performance.now() - heard, old = heard > 0 && silent > 3500;
  document.body.classList.toggle('stale', old);
  if (old && !document.hidden) {
    $('verdict').dataset.level = 'stale';
    put($('verdict-text'), closed ? 'The Manager is closed.' : 'No news from the process for ' + span(1000 * Math.floor(silent / 1000)) + '.');
    put($('verdict-detail'), 'Below is what was known at ' + $('as-of').textContent + '. Trying again.');
    document.title = '?? quorumlock';
  }
  if (old && silent > 12000 && source && source.readyState === EventSource.OPEN) listen(); // the connection ended unseen
};

let listing = 0;     // the timer of the next list
let asking = null;   // aborts the request for a list

const list = async () => {
  clearTimeout(listing);
  if (asking) asking.abort();
  const prefix = subject().get('prefix');
  $('list').hidden = prefix === null;
  if (prefix === null || document.hidden) return;
  const mine = asking = new AbortController();
  try {
    const answer = await fetch('list?' + new URLSearchParams({ prefix }), { signal: mine.signal, cache: 'no-store' });
    if (!answer.ok) throw new Error('the process answered ' + answer.status);
    showList(await answer.json());
  } catch (e) {
    if (mine.signal.aborted) return;
    put($('list-error'), 'No list: ' + e.message);
  }
  listing = setTimeout(list, 15000);
};

const turn = () => {
  const want = subject();
  $('name').hidden = true; // until its first answer
  for (const tr of [...$('holders').tBodies[0].rows, ...$('queue').tBodies[0].rows, ...$('answers').tBodies[0].rows, ...$('listed').tBodies[0].rows]) tr.remove();
  put($('list-text'), 'Looking…');
  put($('list-title').querySelector('bdi'), want.get('prefix') || '');
  $('find-name').value = want.get('name') || want.get('prefix') || '';
  $('find-permits').value = want.get('permits') || '';
  listen();
  list();
};

$('find').addEventListener('submit', (e) => {
  e.preventDefault();
  const text = $('find-name').value, permits = $('find-permits').value;
  const query = new URLSearchParams();
  if (e.submitter && e.submitter.value === 'prefix') {
    query.set('prefix', text);
  } else if (text) {
    query.set('name', text);
    if (permits) query.set('permits', permits);
  }
  if (location.hash.slice(1) === query.toString()) turn();
  else location.hash = query.toString();
});
addEventListener('hashchange', turn);
document.addEventListener('visibilitychange', () => { listen(); list(); });
setInterval(stale, 500);
turn();
