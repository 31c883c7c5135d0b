"use strict";
// The timeline of a report: tracks of spans on a canvas. Everything it writes into the page is text, never markup.
(() => {
  const data = JSON.parse(document.getElementById("scenes").textContent);
  const at = (id) => document.getElementById(id);
  const canvas = at("spans"), axis = at("axis"), scroller = at("scroller"), frame = at("timeline");
  const tip = at("tip"), said = at("said"), steps = at("steps");
  const pen = canvas.getContext("2d"), axisPen = axis.getContext("2d");
  const ROW = 13, LANE_GAP = 2, RANK_GAP = 7, AXIS = 24, LEAST = 20; // pixels; LEAST: ticks of the closest view
  const FONT = "11px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
  const WORDS = {
    compute: "compute, forward", backward: "backward", exposed_communication: "communication", data_wait: "data wait",
    h2d: "copy", optimizer: "optimizer", checkpoint: "checkpoint", gc: "garbage collection", host_gap: "host",
    other: "other",
  };
  let scene, tracks, bands, height, width, gutter, from, to, chosen = null, hovered = null, colours, hatch, queued = false;

  // ---- data

  function open(index) {
    scene = data.scenes[index];
    steps.value = String(index);
    const columns = scene.columns;
    scene.get = (name, span, missing) => (columns[name] ? columns[name][span] : missing);
    let first = 0;
    tracks = scene.tracks.map(([rank, lane, rows, count]) => {
      const track = { rank, lane, rows, first, end: first + count, longest: 0 };
      for (let i = first; i < track.end; i++) track.longest = Math.max(track.longest, columns.length[i]);
      first += count;
      return track;
    });
    [from, to] = [0, scene.length];
    chosen = hovered = null;
    hide();
    say(`${title(index)}: ${ticks(scene.length)}${lastSaid()}`);
    canvas.setAttribute("aria-label", `Timeline of ${title(index)}: ${data.ranks.length} ranks, ${ticks(scene.length)}`);
    at("before").disabled = index === 0;
    at("after").disabled = index === data.scenes.length - 1;
    place();
  }

  function title(index) {
    const step = data.scenes[index].step;
    return step === null ? "the window" : `step ${step}`;
  }

  function lastSaid() {
    if (!scene.last) return "";
    const rank = data.ranks[scene.last[0]].rank;
    return data.pipeline ? `; rank ${rank} computed longest against its peers` : `; the others waited longest for rank ${rank}`;
  }

  function seconds(value) {
    for (const [unit, name] of [[1, "s"], [1e-3, "ms"], [1e-6, "\u00b5s"]]) {
      if (Math.abs(value) >= unit) return `${digits(value / unit)} ${name}`;
    }
    return value ? `${digits(value * 1e9)} ns` : "0";
  }
  const digits = (value) => (Math.abs(value) >= 99.95 ? value.toFixed(0) : value.toPrecision(3));
  const ticks = (value) => seconds(value * scene.tick);

  function bytes(value) {
    let unit = 0;
    for (; value >= 1000 && unit < 4; unit++) value /= 1000;
    return `${digits(value)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
  }

  function nameOf(span) {
    const name = scene.columns.name[span];
    return name >= 0 ? data.names[name] : WORDS[data.kinds[scene.columns.kind[span]]];
  }

  function trackOf(span) {
    return tracks.find((track) => span < track.end);
  }

  function describe(span) {
    const track = trackOf(span), rank = data.ranks[track.rank], count = scene.get("count", span, 1);
    const wait = scene.get("wait", span, -1), size = scene.get("bytes", span, -1), micro = scene.get("micro", span, -1);
    const length = scene.columns.length[span];
    const lines = [count > 1 ? `${count} spans, mostly ${nameOf(span)}` : nameOf(span)];
    lines.push(`${ticks(length)}${count > 1 ? `, of which busy ${ticks(scene.get("busy", span, 0))}` : ""}, from ${ticks(scene.columns.start[span])}`);
    if (wait > 0 && data.kinds[scene.columns.kind[span]] === "exposed_communication") {
      lines.push(`waiting ${ticks(wait)}, transfer ${ticks(Math.max(0, length - wait))}`);
    }
    if (size >= 0) lines.push(bytes(size));
    if (micro >= 0) lines.push(`micro-batch ${micro}`);
    lines.push(`rank ${rank.rank}${rank.place ? ` (${rank.place})` : ""}, ${data.lanes[track.lane]}` + (scene.step === null ? "" : `, step ${scene.step}`));
    return lines;
  }

  // ---- layout

  function place() {
    width = frame.clientWidth;
    gutter = width < 560 ? 76 : 132;
    let y = 4, rank = -1;
    for (const track of tracks) {
      if (track.rank !== rank) {
        y += rank < 0 ? 0 : RANK_GAP;
        rank = track.rank;
      }
      track.y = y;
      y += track.rows * ROW + LANE_GAP;
    }
    height = y + 4;
    bands = data.ranks.map((_, index) => {
      const own = tracks.filter((track) => track.rank === index), last = own[own.length - 1];
      return own.length ? [own[0].y, last.y + last.rows * ROW, own] : null;
    });
    size(canvas, pen, width, height);
    size(axis, axisPen, width, AXIS);
    redraw();
  }

  function size(target, context, w, h) {
    const scale = Math.min(window.devicePixelRatio || 1, 16000 / h);
    target.width = Math.round(w * scale);
    target.height = Math.round(h * scale);
    target.style.width = `${w}px`;
    target.style.height = `${h}px`;
    context.setTransform(scale, 0, 0, scale, 0, 0);
  }

  const xOf = (tick) => gutter + ((tick - from) / (to - from)) * (width - gutter - 8);
  const tickAt = (x) => from + ((x - gutter) / (width - gutter - 8)) * (to - from);

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    colours = Object.fromEntries([...data.kinds, "paper", "raised", "ink", "quiet", "line", "faint", "alarm", "meet"].map((name) => [name, colour(name)]));
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const ink = tile.getContext("2d");
    ink.fillStyle = colours.paper;
    ink.fillRect(0, 0, 6, 6);
    ink.strokeStyle = colours.exposed_communication;
    ink.lineWidth = 1.4;
    for (const shift of [-6, 0, 6]) {
      ink.beginPath();
      ink.moveTo(shift - 1, 7);
      ink.lineTo(shift + 7, -1);
      ink.stroke();
    }
    hatch = pen.createPattern(tile, "repeat");
  }

  const dark = (colour) => {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    return r * 0.3 + g * 0.59 + b * 0.11 < 135;
  };

  // ---- drawing

  function redraw() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      draw();
    });
  }

  function draw() {
    pen.fillStyle = colours.paper;
    pen.fillRect(0, 0, width, height);
    pen.font = FONT;
    pen.textBaseline = "middle";
    drawRanks();
    pen.save();
    pen.beginPath();
    pen.rect(gutter, 0, width - gutter - 7, height);
    pen.clip();
    drawGrid();
    for (const track of tracks) drawTrack(track);
    drawMeets();
    drawEnds();
    for (const span of [hovered, chosen]) if (span !== null) outline(span);
    pen.restore();
    drawAxis();
  }

  function drawRanks() {
    data.ranks.forEach((rank, index) => {
      const band = bands[index];
      if (!band) return;
      const [top, bottom, own] = band;
      const last = scene.last && scene.last[0] === index;
      if (rank.named || last) {
        pen.fillStyle = rank.named ? colours.alarm : colours.meet;
        pen.globalAlpha = 0.1;
        pen.fillRect(0, top - 2, width, bottom - top + 4);
        pen.globalAlpha = 1;
        pen.fillRect(0, top - 2, 3, bottom - top + 4);
      }
      pen.fillStyle = rank.named ? colours.alarm : colours.ink;
      pen.textAlign = "left";
      pen.font = `${rank.named ? "600 " : ""}${FONT}`;
      pen.fillText(`${rank.named ? "\u25b2 " : ""}rank ${rank.rank}`, 8, top + ROW / 2);
      pen.font = FONT;
      if (last && bottom - top > ROW) {
        pen.fillStyle = colours.ink;
        pen.fillText(data.pipeline ? "\u25cf longest" : "\u25cf last", 8, top + ROW * 1.5 + 1);
      } else if (last) {
        pen.fillText("\u25cf", gutter - 50, top + ROW / 2);
      }
      if (gutter > 100) {
        pen.fillStyle = colours.quiet;
        pen.textAlign = "right";
        for (const track of own) pen.fillText({ communication: "comm" }[data.lanes[track.lane]] || data.lanes[track.lane], gutter - 6, track.y + ROW / 2);
      }
    });
  }

  function grid() {
    const span = (to - from) * scene.tick, rough = span / Math.max(2, (width - gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const by = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    const marks = [];
    for (let i = Math.ceil((from * scene.tick) / by - 1e-9); i * by <= to * scene.tick * (1 + 1e-12); i++) marks.push(i * by);
    return marks;
  }

  function drawGrid() {
    pen.fillStyle = colours.faint;
    for (const mark of grid()) pen.fillRect(Math.round(xOf(mark / scene.tick)), 0, 1, height);
  }

  function drawAxis() {
    axisPen.fillStyle = colours.paper;
    axisPen.fillRect(0, 0, width, AXIS);
    axisPen.font = FONT;
    axisPen.textBaseline = "middle";
    axisPen.textAlign = "left";
    axisPen.fillStyle = colours.quiet;
    axisPen.fillText(scene.step === null ? "window" : `step ${scene.step}`, 8, AXIS / 2);
    axisPen.textAlign = "center";
    for (const mark of grid()) {
      const text = mark ? seconds(Number(mark.toPrecision(6))).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ") : "0", x = xOf(mark / scene.tick), half = axisPen.measureText(text).width / 2;
      axisPen.fillText(text, Math.min(Math.max(x, gutter + half), width - half - 2), AXIS / 2 - 2);
      axisPen.fillRect(Math.round(x), AXIS - 5, 1, 5);
    }
  }

  function drawTrack(track) {
    const { start, length, kind } = scene.columns;
    const free = new Array(track.rows).fill(-1); // by row, the pixel up to which something short is drawn already
    for (let i = firstIn(track); i < track.end && start[i] <= to; i++) {
      const left = xOf(start[i]), right = xOf(start[i] + length[i]), row = scene.get("row", i, 0);
      if (right < gutter || (right - left < 0.6 && right < free[row])) continue;
      free[row] = Math.max(free[row], left + 0.6);
      const y = track.y + row * ROW, name = data.kinds[kind[i]], wide = Math.max(right - left, 0.8);
      const gap = right - left > 3 ? 0.5 : 0;
      pen.globalAlpha = scene.get("count", i, 1) > 1 ? 0.72 : 1;
      pen.fillStyle = colours[name];
      pen.fillRect(left, y, wide - gap, ROW - 1);
      pen.globalAlpha = 1;
      const wait = name === "exposed_communication" ? scene.get("wait", i, -1) : -1;
      if (wait > 0) hatched(left, xOf(start[i] + Math.min(wait, length[i])), y);
      if (right - left > 26) label(i, name, left, right, y, wait);
    }
  }

  function firstIn(track) {
    // Sorted by start; what began before may still reach into view, at most by the longest span.
    let low = track.first, high = track.end;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (scene.columns.start[middle] < from - track.longest) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function hatched(left, right, y) {
    if (right - left < 1) return;
    pen.fillStyle = hatch;
    pen.fillRect(left, y, right - left, ROW - 1);
    pen.strokeStyle = colours.exposed_communication;
    pen.lineWidth = 1;
    pen.strokeRect(left + 0.5, y + 0.5, Math.max(right - left - 1, 0), ROW - 2);
  }

  function label(span, kind, left, right, y, wait) {
    const begin = Math.max(left, gutter), waited = xOf(scene.columns.start[span] + Math.max(wait, 0));
    const clear = wait > 0 ? waited : begin; // text stands on the plain part where it fits there
    let [x, end, colour] = [Math.max(begin, clear), right, dark(colours[kind]) ? "#fff" : "#111"];
    if (wait > 0 && end - x < 40) [x, end, colour] = [begin, Math.min(waited, right), null];
    const room = Math.min(end, width - 8) - x - 6;
    if (room < 22) return;
    const text = fitted(colour === null ? `wait for ${nameOf(span)}` : nameOf(span), room);
    if (!text || (colour === null && text.endsWith("\u2026"))) return; // the hatching says more than half a word
    if (colour === null) {
      pen.fillStyle = colours.paper;
      pen.fillRect(x + 2, y + 1, pen.measureText(text).width + 4, ROW - 3);
    }
    pen.fillStyle = colour === null ? colours.ink : colour;
    pen.textAlign = "left";
    pen.fillText(text, x + 4, y + ROW / 2);
  }

  function fitted(text, room) {
    if (pen.measureText(text).width <= room) return text;
    for (let most = Math.min(text.length, Math.floor(room / 4)); most >= 3; most--) {
      const cut = `${text.slice(0, most)}\u2026`;
      if (pen.measureText(cut).width <= room) return cut;
    }
    return "";
  }

  function drawMeets() {
    for (const [tick, last, runs] of scene.meets) {
      const x = Math.round(xOf(tick)) + 0.5, came = bands[last];
      if (x < gutter || x > width) continue;
      pen.fillStyle = colours.meet;
      let reached = null;
      for (const [first, end] of runs) {
        const top = bands[first], bottom = bands[end];
        if (!top || !bottom) continue;
        pen.globalAlpha = 0.2; // past ranks that are not in it
        if (reached !== null) pen.fillRect(x - 0.5, reached, 1, top[0] - reached);
        pen.globalAlpha = 0.8;
        pen.fillRect(x - 0.5, top[0], 1, bottom[1] - top[0]);
        reached = bottom[1];
      }
      pen.globalAlpha = 1;
      if (!came) continue;
      const lane = came[2].find((track) => data.lanes[track.lane] === "communication") || came[2][came[2].length - 1];
      pen.fillStyle = colours.alarm;
      pen.strokeStyle = colours.paper;
      pen.beginPath();
      pen.arc(x, lane.y + ROW / 2, 4, 0, 7);
      pen.fill();
      pen.stroke();
    }
  }

  function drawEnds() {
    pen.fillStyle = colours.ink;
    scene.ends.forEach((tick, rank) => {
      const band = bands[rank];
      const x = tick === null ? width : Math.floor(xOf(tick));
      if (band && x < width - 7) pen.fillRect(Math.min(x, width - 9), band[0], 1, band[1] - band[0]);
    });
  }

  function outline(span) {
    const track = trackOf(span), { start, length } = scene.columns;
    const left = Math.max(xOf(start[span]), gutter), right = Math.min(xOf(start[span] + length[span]), width);
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 2;
    pen.strokeRect(left, track.y + scene.get("row", span, 0) * ROW, Math.max(right - left, 2), ROW - 1);
  }

  // ---- moving

  function show(begin, end) {
    const span = Math.min(scene.length, Math.max(LEAST, end - begin));
    from = Math.min(Math.max(0, begin), scene.length - span);
    to = from + span;
    hide();
    redraw();
  }

  function zoom(factor, tick = (from + to) / 2) {
    show(tick - (tick - from) * factor, tick + (to - tick) * factor);
  }
  const move = (part) => show(from + (to - from) * part, to + (to - from) * part);

  function spanAt(x, y) {
    const track = tracks.find((each) => y >= each.y && y < each.y + each.rows * ROW);
    if (!track || x < gutter) return null;
    const row = Math.floor((y - track.y) / ROW), { start, length } = scene.columns;
    const tick = tickAt(x), near = tickAt(x + 2) - tick;
    let best = null;
    for (let i = firstIn(track); i < track.end && start[i] <= tick + near; i++) {
      if (scene.get("row", i, 0) !== row || start[i] + length[i] < tick - near) continue;
      if (best === null || length[i] <= length[best]) best = i;
    }
    return best;
  }

  function say(text) {
    said.textContent = text;
  }

  function hide() {
    tip.hidden = true;
    hovered = null;
  }

  function point(span, x, y) {
    hovered = span;
    tip.textContent = describe(span).join("\n");
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(2, Math.min(x + 14, width - box.width - 2))}px`;
    const below = y - scroller.scrollTop + AXIS + 18, top = below - box.height - 30;
    tip.style.top = `${below + box.height > scroller.clientHeight + AXIS && top > 0 ? top : below}px`;
    redraw();
  }

  function choose(span) {
    const { start, length } = scene.columns, track = trackOf(span), end = start[span] + length[span];
    chosen = span;
    if (start[span] < from || end > to) {
      const half = Math.max(to - from, length[span] * 1.2) / 2, middle = start[span] + length[span] / 2;
      show(middle - half, middle + half);
    }
    if (track.y < scroller.scrollTop) scroller.scrollTop = track.y - RANK_GAP;
    if (track.y + track.rows * ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = track.y - scroller.clientHeight + track.rows * ROW + RANK_GAP;
    point(span, Math.max(gutter, xOf(start[span])), track.y + scene.get("row", span, 0) * ROW);
    say(describe(span).join("; "));
  }

  function step(along, across) {
    if (chosen === null) return choose(tracks[0].first);
    const index = tracks.indexOf(trackOf(chosen)), track = tracks[index];
    if (along) return choose(Math.min(Math.max(chosen + along, track.first), track.end - 1));
    const next = tracks[Math.min(Math.max(index + across, 0), tracks.length - 1)], { start } = scene.columns;
    let best = next.first;
    for (let i = next.first; i < next.end && start[i] <= start[chosen]; i++) best = i;
    return choose(best);
  }

  const KEYS = {
    "+": () => zoom(0.6), "=": () => zoom(0.6), w: () => zoom(0.6), "-": () => zoom(1 / 0.6), s: () => zoom(1 / 0.6),
    a: () => move(-0.2), d: () => move(0.2), Home: () => show(0, scene.length), 0: () => show(0, scene.length),
    ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0), ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1),
    Escape: () => { chosen = null; hide(); redraw(); },
  };

  function listen() {
    canvas.addEventListener("keydown", (event) => {
      const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    canvas.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!sideways && !event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      if (!sideways && event.offsetX < gutter) return; // over the names the wheel scrolls
      event.preventDefault();
      const turned = event.deltaY || event.deltaX;
      if (sideways) move((event.deltaX || event.deltaY) / 800);
      else zoom(Math.exp(Math.max(-1, Math.min(1, turned / 300))), tickAt(event.offsetX));
    }, { passive: false });
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      drag = { x: event.offsetX, from, to, range: event.shiftKey, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag && (drag.moved || Math.abs(event.offsetX - drag.x) > 3)) {
        drag.moved = true;
        const shift = ((event.offsetX - drag.x) / (width - gutter - 8)) * (drag.to - drag.from);
        if (!drag.range) return show(drag.from - shift, drag.to - shift);
        draw();
        pen.fillStyle = colours.meet;
        pen.globalAlpha = 0.2;
        pen.fillRect(drag.x, 0, event.offsetX - drag.x, height);
        pen.globalAlpha = 1;
        return undefined;
      }
      const span = spanAt(event.offsetX, event.offsetY);
      if (span !== null) return point(span, event.offsetX, event.offsetY);
      if (hovered !== null) redraw();
      return hide();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && drag.moved && drag.range) {
        const ends = [tickAt(drag.x), tickAt(event.offsetX)].sort((a, b) => a - b);
        show(ends[0], ends[1]);
      } else if (drag && !drag.moved) {
        const span = spanAt(event.offsetX, event.offsetY);
        if (span !== null) {
          choose(span);
          point(span, event.offsetX, event.offsetY);
        }
      }
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { hide(); redraw(); });
    canvas.addEventListener("dblclick", () => show(0, scene.length));
    scroller.addEventListener("scroll", hide);
    steps.addEventListener("change", () => open(Number(steps.value)));
    const press = (id, act) => at(id).addEventListener("click", act);
    press("before", () => open(Math.max(0, Number(steps.value) - 1)));
    press("after", () => open(Math.min(data.scenes.length - 1, Number(steps.value) + 1)));
    press("closer", () => zoom(0.6));
    press("farther", () => zoom(1 / 0.6));
    press("left", () => move(-0.3));
    press("right", () => move(0.3));
    press("whole", () => show(0, scene.length));
    new ResizeObserver(() => { if (frame.clientWidth !== width) place(); }).observe(frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); legend(); redraw(); });
  }

  // ---- beside the picture

  function legend() {
    const seen = new Set(data.scenes.flatMap((each) => each.columns.kind));
    const waits = data.scenes.some((each) => each.columns.wait && each.columns.wait.some((wait) => wait > 0));
    const items = data.kinds.map((kind, index) => [kind, index]).filter(([, index]) => seen.has(index)).map(([kind]) => [WORDS[kind], (ink) => {
      ink.fillStyle = colours[kind];
      ink.fillRect(0, 0, 16, 11);
    }]);
    if (waits) items.push(["waiting for others", (ink) => {
      ink.fillStyle = hatch;
      ink.fillRect(0, 0, 16, 11);
    }]);
    if (data.scenes.some((each) => each.meets.length)) items.push(["last to arrive", (ink) => {
      ink.fillStyle = colours.meet;
      ink.fillRect(7, 0, 1, 11);
      ink.fillStyle = colours.alarm;
      ink.beginPath();
      ink.arc(7.5, 5.5, 3.5, 0, 7);
      ink.fill();
    }]);
    const box = at("legend");
    box.replaceChildren();
    for (const [words, paint] of items) {
      const item = document.createElement("span"), patch = document.createElement("canvas");
      [patch.width, patch.height] = [16, 11];
      paint(patch.getContext("2d"));
      item.append(patch, words);
      box.append(item);
    }
    if (data.ranks.some((rank) => rank.named)) {
      const item = document.createElement("span");
      item.className = "named";
      item.textContent = "\u25b2 named by the verdict";
      box.append(item);
    }
  }

  const lengths = data.scenes.map((each) => each.length * each.tick);
  data.scenes.forEach((each, index) => {
    const option = document.createElement("option");
    const marks = [];
    if (index === data.first && data.scenes.length > 1) marks.push("median");
    if (data.scenes.length > 1 && lengths[index] === Math.max(...lengths)) marks.push("slowest");
    option.value = String(index);
    option.textContent = `${each.step === null ? "window" : each.step} \u00b7 ${seconds(lengths[index])}${marks.length ? ` \u00b7 ${marks.join(", ")}` : ""}`;
    steps.append(option);
  });
  readColours();
  legend();
  listen();
  open(data.first);
  document.documentElement.dataset.drawn = "yes";
})();
