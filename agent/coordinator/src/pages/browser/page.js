
"use strict";
(() => {
  // The columns of a row.
  const [SLOT, STATE, RANK, FIRST_RANK, WORKERS, HOST, ADDRESS, STANDBYS, REASON, STATUS, STALLED, SILENT] = Array(12).keys();
  const SQUARES_MAX = 400; // more nodes are drawn on a canvas
  const NAMED_MAX = 40; // fewer nodes are shown with their hosts
  const PLACES_MAX = 6; // of workers; `ragent stacks` prints all
  const UNUSUAL_MAX = 50;
  const EVENTS_MAX = 200;
  const LATE_MS = 3000; // without data; a state arrives each second
  const DEAD_MS = 10000;

  const $ = (id) => document.getElementById(id);
  const states = new Map(); // letter to name
  const causes = new Map(); // name to text
  let job = null;
  let rows = []; // by slot
  let events = []; // newest first
  let received = 0; // the time of the newest message
  let order = []; // the nodes in the order of the map
  let chosen = null; // the slot of the selected node
  let stream = null;
  let isEnded = false;

  const make = (tag, text, className) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const number = (value) => value.toLocaleString("en");
  const count = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;

  const time = (ms) => {
    const s = Math.floor(ms / 1000);
    if (s < 1) return `${Math.floor(ms)} ms`;
    if (s < 60) return `${s}.${Math.floor((ms % 1000) / 100)} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  };

  // Messages

  const read = (message) => {
    const data = JSON.parse(message.data);
    received = performance.now();
    const before = chosen === null ? null : rows[chosen];
    if (message.type === "all") {
      // Another coordinator numbers the nodes in another way.
      chosen = null;
      states.clear();
      causes.clear();
      data.states.forEach(([letter, name]) => states.set(letter, name));
      data.causes.forEach(([name, text]) => causes.set(name, text));
      rows = new Array(data.slots).fill(null);
      events = [];
    }
    if (data.job) job = data.job;
    for (const slot of data.gone || []) {
      rows[slot] = null;
      if (slot === chosen) chosen = null;
    }
    for (const row of data.rows) {
      row.at = received;
      rows[row[SLOT]] = row;
      const wasChosen = message.type === "all" && before && before[HOST] === row[HOST] && before[ADDRESS] === row[ADDRESS];
      if (wasChosen && before[RANK] === row[RANK]) chosen = row[SLOT];
    }
    if (data.letters) {
      [...data.letters].forEach((letter, slot) => {
        if (rows[slot] && letter !== "-") rows[slot][STATE] = letter;
      });
    }
    if (data.events) events = data.events.reverse().concat(events).slice(0, EVENTS_MAX);
    isEnded = job.outcome !== null && !data.more;
    if (isEnded) stream.close();
    schedule(true);
  };

  const open = () => {
    stream = new EventSource("v1/watch");
    const opened = performance.now();
    const current = stream;
    stream.addEventListener("all", read);
    stream.addEventListener("change", read);
    const again = () => {
      current.close();
      clearInterval(check);
      if (!isEnded) setTimeout(open, 1000 + 2000 * Math.random());
    };
    // A server that is stopped does not end its connections.
    const check = setInterval(() => {
      if (isEnded || performance.now() - Math.max(received, opened) > DEAD_MS) again();
    }, 1000);
    stream.onerror = again;
    schedule(false);
  };

  // Drawing

  let isScheduled = false;
  let isNew = false;
  const schedule = (hasData) => {
    isNew ||= hasData;
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      const draws = isNew && job;
      isNew = false;
      if (draws) draw();
      age();
    });
  };

  const draw = () => {
    $("app").hidden = false;
    document.title = `${job.run_id}: ${job.phase}`;
    order = rows.filter((row) => row).sort(compare);
    header();
    outcome();
    progress();
    timeBar();
    problems();
    map();
    unusual();
    journal();
    restarts();
  };

  const natural = new Intl.Collator("en", { numeric: true });
  const compare = (a, b) => {
    if (a[RANK] !== b[RANK]) return (a[RANK] ?? Infinity) < (b[RANK] ?? Infinity) ? -1 : 1;
    return natural.compare(a[HOST], b[HOST]) || a[SLOT] - b[SLOT];
  };

  // Shows what changes with the time alone.
  const age = () => {
    const live = $("live");
    const silence = performance.now() - received;
    let text = "connecting";
    if (isEnded) text = "the job has ended";
    else if (job && silence < LATE_MS) text = "live";
    else if (job) text = `connection lost; this is the state of ${time(silence)} ago`;
    if (live.textContent !== text) live.textContent = text;
    live.className = job && !isEnded && silence >= LATE_MS ? "lost" : "";
    if (job) $("since").textContent = `for ${time(job.phase_ms + (isEnded ? 0 : silence))}`;
    if (chosen !== null) details();
  };

  const header = () => {
    $("job").textContent = job.run_id;
    const failed = job.outcome && job.outcome.result !== "succeeded";
    $("phase").textContent = job.phase;
    $("phase").className = `phase ${failed ? "failed" : job.phase}`;
    const gathers = job.phase === "gathering" || job.phase === "recovering";
    const absent = new Set(gathers ? ["lost", "quarantined", "unhealthy", "excluded"] : ["lost"]);
    const members = order.filter((row) => (gathers || row[RANK] !== null) && !absent.has(states.get(row[STATE]))).length;
    const range = job.min_nodes === job.max_nodes ? job.max_nodes : `${job.min_nodes}:${job.max_nodes}`;
    const facts = [
      `round ${number(job.round)}`,
      `${number(members)} of ${range} nodes`,
      count(job.world_size, "worker"),
      `restarts ${job.restarts_used - job.restarts_forgiven}/${job.max_restarts}`,
    ];
    $("facts").textContent = facts.join(" · ");
  };

  const outcome = () => {
    const section = $("outcome");
    section.hidden = !job.outcome;
    if (!job.outcome) return;
    const succeeded = job.outcome.result === "succeeded";
    section.className = succeeded ? "succeeded" : "";
    const closed = events.find((event) => event.kind === "job_closed");
    section.replaceChildren(make("strong", closed ? closed.text : "the job is closed"));
    const failure = job.outcome.first_failure;
    if (!failure) return;
    const event = events.find((e) => e.kind === "worker_failed" && e.rank === failure.global_rank);
    section.append(make("p", `First failure: ${event ? event.text : `rank ${failure.global_rank} on ${failure.host_name}`}`));
    const text = [failure.message, failure.stderr_tail].filter((part) => part).join("\n");
    if (text) section.append(make("pre", text));
  };

  const progress = () => {
    const { progress: p, time: t } = job;
    const parts = [];
    if (p) {
      const all = p.steps_left === null ? "" : ` of ${number(p.step + p.steps_left)}`;
      parts.push(`step ${number(p.step)}${all} (${p.source})`);
      if (p.step_ms !== null) parts.push(`${p.step_ms < 10 ? `${p.step_ms.toFixed(1)} ms` : time(p.step_ms)} a step`);
      if (p.age_ms >= 2000) parts.push(`the last ${time(p.age_ms)} ago`);
    }
    const age = t.states.reduce((sum, state) => sum + state.ms, 0);
    const productive = t.states.find((state) => state.state === "productive");
    const unknown = t.states.find((state) => state.state === "unknown")?.ms ?? 0;
    if (age > 0 && productive) {
      const ratio = (100 * Math.max(0, productive.ms - t.redone_ms)) / Math.max(1, age - unknown);
      const why = p ? "until steps were read for a minute" : "as the workers report no progress";
      const isUnknown = productive.ms === 0 && unknown > 0;
      parts.push(isUnknown ? `productive time unknown, ${why}` : `${ratio.toFixed(1)} % productive`);
      parts.push(`${time(age)} in all`);
    }
    $("progress").textContent = parts.join(" · ");
    const c = job.checkpoints;
    const saves = [];
    if (c) {
      const cost = c.cost_ms === null ? "" : `, each costs ${time(c.cost_ms)}`;
      saves.push(`checkpoints every ${number(c.every_steps)} steps (${time(c.every_ms)})${cost}`);
      if (c.best_ms !== null && c.best_lost !== null) {
        const percent = (part) => `${(100 * part).toFixed(1)} %`;
        saves.push(`best every ${time(c.best_ms)}, which loses ${percent(c.best_lost)} of the time, now ${percent(c.lost)}`);
      }
    } else if (job.saved_step !== null) saves.push(`step ${number(job.saved_step)} is saved`);
    if (job.save_failed) saves.push(`checkpoint failed: ${job.save_failed}`);
    const m = job.memory;
    if (m && m.step !== null) saves.push(memory(m));
    $("checkpoints").textContent = saves.join(" · ");
    $("checkpoints").hidden = saves.length === 0;
  };

  // Describes the newest checkpoint in memory.
  const memory = (m) => {
    const age = m.age_ms === null ? "" : `, ${time(m.age_ms)} old`;
    const short = (ms) => (ms >= 10 && ms < 1e4 ? `${(ms / 1000).toFixed(2)} s` : time(ms));
    const cost = m.cost_ms === null ? "" : `; a save takes ${short(m.cost_ms)}`;
    const gb = (bytes) => (bytes < 1e10 ? (bytes / 1e9).toFixed(1) : number(Math.round(bytes / 1e9)));
    const space = m.needed > 0 ? `; at most ${gb(m.needed)} of ${gb(m.limit)} GB on a node` : "";
    return `memory: step ${number(m.step)} whole${m.is_copied ? " and copied" : ""}${age}${cost}${space}`;
  };

  const timeBar = () => {
    const parts = job.time.states.map(({ state, ms }) => {
      return { state, ms: state === "productive" ? Math.max(0, ms - job.time.redone_ms) : ms };
    });
    const at = parts.findIndex(({ state }) => state === "productive");
    parts.splice(at + 1, 0, { state: "redone", ms: job.time.redone_ms });
    const shown = parts.filter(({ ms }) => ms >= 1);
    const age = shown.reduce((sum, { ms }) => sum + ms, 0);
    const colour = (element, state) => {
      element.style.backgroundColor = `var(--${state})`;
      return element;
    };
    $("time-bar").replaceChildren(...shown.map(({ state, ms }) => {
      const part = colour(make("span"), state);
      part.style.flexGrow = ms;
      part.title = `${state} ${time(ms)}`;
      return part;
    }));
    const texts = shown.map(({ state, ms }) => `${state} ${time(ms)} (${((100 * ms) / age).toFixed(1)} %)`);
    $("time-bar").ariaLabel = `Time by state: ${texts.join(", ")}`;
    $("time-legend").replaceChildren(...shown.map(({ state }, n) => {
      const item = make("li");
      item.append(colour(make("i"), state), texts[n]);
      return item;
    }));
  };

  const problems = () => {
    const list = [];
    const s = job.saving;
    if (s) {
      const goes = s.kind === "end" ? "the job ends" : s.kind === "leave" ? `${s.hosts.join(", ")} leaves` : "nodes join";
      const missing = s.missing ? `; not yet: ${s.missing}` : "";
      list.push(`Saving before ${goes} (${s.source}): ${s.saved_ranks} of ${s.ranks} ranks, ${time(s.left_ms)} left${missing}`);
    }
    if (job.memory?.text) list.push(`Memory: ${job.memory.text}`);
    if (job.incomplete) list.push(`The next round is not complete: ${job.incomplete.text}`);
    const stall = job.stall;
    if (stall) {
      const what = stall.step === null ? "no first step" : `no step after ${number(stall.step)}`;
      const usual = stall.step !== null && job.progress?.step_ms ? ` (usually ${time(job.progress.step_ms)})` : "";
      list.push(`The workers are stalled: ${what} for ${time(stall.for_ms)}${usual}`);
      if (stall.text) list.push(`Why: ${stall.text}`);
      for (const fact of stall.facts) list.push(fact);
    }
    const look = job.look;
    if (look?.text && !stall) list.push(`${time(look.age_ms)} ago: ${look.text}`);
    for (const {text, count, ranks} of look?.places.slice(0, PLACES_MAX) ?? []) {
      const names = ranks.map(([first, last]) => first === last ? first : `${first}-${last}`).join(", ");
      const others = ranks.reduce((left, [first, last]) => left - (last - first + 1), count);
      const more = others > 0 ? ` and ${number(others)} others` : "";
      list.push(`${time(look.age_ms)} ago, ${count === 1 ? "rank" : "ranks"} ${names}${more}: ${text}`);
    }
    for (const voter of job.voters) {
      if (!voter.is_leader && voter.silent_ms >= 3000) {
        list.push(`The voter ${voter.endpoint} has not answered for ${time(voter.silent_ms)}`);
      }
    }
    if (job.refused_clients.length > 0) {
      list.push(`The store of round ${job.round} refused connections from ${job.refused_clients.join(", ")}`);
    }
    for (const {host_name, to, why} of job.unreached) list.push(`${host_name} does not reach ${to}: ${why}`);
    for (const peer of job.refused_peers) list.push(`Refused: ${peer.count} from ${peer.address} (${peer.reason})`);
    $("problems").hidden = list.length === 0;
    $("problems").firstElementChild.replaceChildren(...list.map((text) => make("li", text)));
  };

  // Returns the reason why a node of a stalled job is unusual.
  const late = () => `no new step for more than ${time(job.stall?.limit_ms ?? 0)}`;

  // The map of the nodes

  const isOdd = (row) => row[STALLED] || row[SILENT] !== null;
  const matches = (row, text) => {
    if (!text) return true;
    const name = states.get(row[STATE]);
    return row[HOST].toLowerCase().includes(text) || name === text || String(row[RANK]) === text;
  };
  const wanted = () => $("find").value.trim().toLowerCase();

  const map = () => {
    const container = $("map");
    if (order.length > SQUARES_MAX) canvas(container);
    else squares(container);
    const counts = new Map();
    for (const row of order) counts.set(row[STATE], (counts.get(row[STATE]) || 0) + 1);
    const legend = [...states].filter(([letter]) => counts.has(letter)).map(([letter, name]) => {
      const item = make("li");
      const square = make("i", letter);
      square.style.backgroundColor = `var(--${letter})`;
      item.append(square, `${number(counts.get(letter))} ${name}`);
      return item;
    });
    $("map-legend").replaceChildren(...legend);
    const text = wanted();
    const found = text ? `, ${number(order.filter((row) => matches(row, text)).length)} found` : "";
    $("nodes-title").textContent = `Nodes: ${number(order.length)}${found}`;
    details();
  };

  const describe = (row) => `${row[HOST]}, ${row[RANK] === null ? "no rank" : `rank ${row[RANK]}`}, ${states.get(row[STATE])}`;

  const squares = (container) => {
    const text = wanted();
    const isNamed = order.length <= NAMED_MAX;
    container.replaceChildren(...order.map((row) => {
      const square = make("span", isNamed ? `${row[STATE]} ${row[HOST]}` : row[STATE]);
      square.classList.toggle("named", isNamed);
      square.id = `node${row[SLOT]}`;
      square.style.backgroundColor = `var(--${row[STATE]})`;
      square.title = describe(row);
      square.role = "option";
      square.ariaLabel = describe(row);
      square.ariaSelected = String(row[SLOT] === chosen);
      square.classList.toggle("chosen", row[SLOT] === chosen);
      square.classList.toggle("odd", isOdd(row));
      square.classList.toggle("other", !matches(row, text));
      return square;
    }));
    container.setAttribute("aria-activedescendant", chosen === null ? "" : `node${chosen}`);
  };

  let grid = null; // the columns and the size of a square on the canvas
  const canvas = (container) => {
    const width = Math.max(200, container.clientWidth || container.parentElement.clientWidth - 26);
    const size = Math.max(4, Math.min(16, Math.floor(Math.sqrt((width * 480) / order.length))));
    const columns = Math.floor(width / size);
    const height = Math.ceil(order.length / columns) * size;
    let element = container.firstElementChild;
    if (!element || element.tagName !== "CANVAS") {
      element = make("canvas");
      element.onmousemove = (event) => {
        const row = order[at(event)];
        element.title = row ? describe(row) : "";
      };
      container.replaceChildren(element);
      container.removeAttribute("aria-activedescendant");
    }
    grid = { columns, size };
    const scale = window.devicePixelRatio || 1;
    element.width = width * scale;
    element.height = height * scale;
    element.style.width = `${width}px`;
    element.style.height = `${height}px`;
    const context = element.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const colours = new Map([...states.keys()].map((letter) => [letter, style.getPropertyValue(`--${letter}`).trim()]));
    const [bad, focus, ink] = ["--bad", "--focus", "--ink"].map((name) => style.getPropertyValue(name).trim());
    const text = wanted();
    context.font = "600 10px monospace";
    context.textAlign = "center";
    context.textBaseline = "middle";
    order.forEach((row, n) => {
      const [x, y] = [(n % columns) * size, Math.floor(n / columns) * size];
      context.globalAlpha = matches(row, text) ? 1 : 0.2;
      context.fillStyle = colours.get(row[STATE]);
      context.fillRect(x, y, size - 1, size - 1);
      if (size >= 14) {
        context.fillStyle = ink;
        context.fillText(row[STATE], x + (size - 1) / 2, y + (size - 1) / 2);
      }
      if (isOdd(row) || row[SLOT] === chosen) {
        context.globalAlpha = 1;
        context.lineWidth = 2;
        context.strokeStyle = row[SLOT] === chosen ? focus : bad;
        context.strokeRect(x, y, size - 1, size - 1);
      }
    });
    context.globalAlpha = 1;
  };

  const at = (event) => {
    const x = Math.floor(event.offsetX / grid.size);
    return x < grid.columns ? Math.floor(event.offsetY / grid.size) * grid.columns + x : -1;
  };

  const choose = (row) => {
    chosen = row ? row[SLOT] : null;
    map();
  };

  const details = () => {
    const row = chosen === null ? null : rows[chosen];
    const parts = [];
    if (row) {
      parts.push(`${row[HOST]} (${row[ADDRESS]})`, states.get(row[STATE]));
      if (row[RANK] !== null) {
        const last = row[FIRST_RANK] + row[WORKERS] - 1;
        const ranks = row[WORKERS] === 1 ? `rank ${row[FIRST_RANK]}` : `ranks ${row[FIRST_RANK]} to ${last}`;
        parts.push(`group rank ${row[RANK]}, ${ranks}`);
      } else parts.push(count(row[WORKERS], "worker"));
      if (row[STANDBYS]) parts.push(`${row[STANDBYS][0]} of ${row[STANDBYS][1]} standbys ready`);
      if (row[STALLED]) parts.push(late());
      if (row[REASON]) parts.push(row[REASON]);
      if (row[STATUS]) parts.push(`status: ${row[STATUS]}`);
    }
    const text = parts.join(" · ");
    if ($("details").textContent !== text) $("details").textContent = text;
    const isSilent = row && row[SILENT] !== null;
    $("seen").textContent = isSilent ? `last seen ${time(row[SILENT] + performance.now() - row.at)} ago` : "";
  };

  const unusual = () => {
    const usual = new Set(job.phase === "running" ? ["running"] : ["running", "joined", "succeeded"]);
    const odd = order.filter((row) => !usual.has(states.get(row[STATE])) || row[REASON] || isOdd(row));
    $("unusual").hidden = odd.length === 0;
    const lines = odd.slice(0, UNUSUAL_MAX).map((row) => {
      const line = make("tr");
      const reason = row[REASON] || (row[STALLED] ? late() : "");
      for (const text of [row[RANK] ?? "-", row[HOST], states.get(row[STATE]), reason]) line.append(make("td", text));
      return line;
    });
    if (odd.length > UNUSUAL_MAX) {
      const line = make("tr");
      const cell = make("td", `and ${number(odd.length - UNUSUAL_MAX)} more`);
      cell.colSpan = 4;
      line.append(cell);
      lines.push(line);
    }
    $("unusual").tBodies[0].replaceChildren(...lines);
  };

  // Events and restarts

  const BAD = new Set(["worker_failed", "node_lost", "node_quarantined", "node_refused"]);
  let newestShown = null;
  const journal = () => {
    if (events.length > 0 && events[0].id === newestShown) return;
    newestShown = events.length > 0 ? events[0].id : null;
    const depths = new Map();
    const list = [];
    for (const event of [...events].reverse()) {
      const depth = event.cause !== null && depths.has(event.cause) ? Math.min(4, depths.get(event.cause) + 1) : 0;
      depths.set(event.id, depth);
      const item = make("li");
      const at = make("time", new Date(event.at).toLocaleTimeString([], { hour12: false }));
      at.dateTime = event.at;
      item.append(at, make("span", event.text, `d${depth}${BAD.has(event.kind) ? " bad" : ""}`));
      item.title = `${event.kind} ${event.id}`;
      list.push(item);
    }
    $("events").replaceChildren(...list.reverse());
  };

  const restarts = () => {
    $("restarts").hidden = job.restarts.length === 0;
    const lines = job.restarts.map(({ cause, count: n, cost_ms, redone_steps }) => {
      const line = make("tr");
      for (const text of [causes.get(cause) || cause, number(n), time(cost_ms), number(redone_steps)]) {
        line.append(make("td", text));
      }
      return line;
    });
    $("restarts").querySelector("tbody").replaceChildren(...lines);
    const last = job.last_restart;
    $("last-restart").hidden = !last;
    if (!last) return;
    const stages = Object.entries(last.stages).filter(([, ms]) => ms > 0)
      .map(([stage, ms]) => `${stage.replace("_ms", "")} ${time(ms)}`);
    const all = Object.values(last.stages).reduce((sum, ms) => sum + ms, 0);
    const steps = last.redone_steps ? `, ${count(last.redone_steps, "step")} done again` : "";
    const why = causes.get(last.why) || last.why;
    $("last-restart").textContent = `Last: ${why}, ${time(all)} (${stages.join(", ")})${steps}`;
  };

  // Keys

  // The squares may be replaced between the press and the release of the button.
  $("map").onpointerdown = (event) => {
    if (event.target.tagName === "CANVAS") choose(order[at(event)]);
    else if (event.target.id.startsWith("node")) choose(rows[event.target.id.slice(4)]);
  };
  $("map").onkeydown = (event) => {
    const n = order.findIndex((row) => row[SLOT] === chosen);
    const columns = order.length > SQUARES_MAX ? grid.columns : rowLength();
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity,
    };
    if (event.key === "Escape") choose(null);
    else if (event.key in steps && order.length > 0) {
      const next = n < 0 && event.key !== "End" ? 0 : n + steps[event.key];
      choose(order[Math.max(0, Math.min(order.length - 1, next))]);
    } else return;
    event.preventDefault();
  };
  const rowLength = () => {
    const [first, ...others] = $("map").children;
    const below = first ? others.findIndex((square) => square.offsetTop > first.offsetTop) : -1;
    return below < 0 ? order.length : below + 1;
  };
  $("find").oninput = () => map();
  $("find").onkeydown = (event) => {
    if (event.key === "Escape") {
      $("find").value = "";
      map();
    } else if (event.key === "Enter") {
      const text = wanted();
      choose(order.find((row) => matches(row, text)));
      $("map").focus();
    }
  };
  document.onkeydown = (event) => {
    if (event.key === "/" && document.activeElement !== $("find")) {
      $("find").focus();
      event.preventDefault();
    }
  };
  const redraw = () => job && map();
  window.onresize = redraw;
  matchMedia("(prefers-color-scheme: dark)").onchange = redraw;

  $("app").hidden = false;
  setInterval(() => schedule(false), 1000);
  open();
})();
