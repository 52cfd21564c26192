// The memory explorer: one sequence, a moment of training, a position; what every layer did there.
(() => {
  "use strict";
  const place = document.getElementById("explorer");
  if (!place) return;
  const data = JSON.parse(place.querySelector("script").textContent);
  const length = data.kind.length;
  const layers = data.moments[0].layers.length;
  const last = data.moments[data.moments.length - 1];
  const reads = data.kind.map((_, t) => last.layers.some((layer) => layer.actions[t] === "1"));
  // It begins at the end of training, at the first position that still reads.
  const view = { moment: data.moments.length - 1, layer: layers - 1, t: reads.includes(true) ? reads.indexOf(true) : 0 };
  let timer = 0;

  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const button = (text, label, act) => {
    const element = make("button", "", text);
    element.type = "button";
    if (label) element.setAttribute("aria-label", label);
    element.addEventListener("click", act);
    return element;
  };

  const kindOf = (t) => data.kinds[data.kind[t]];
  const isQuery = (t) => data.targets[t] >= 0;
  // What a position is, in a few words: "store, key 48, value 16".
  const describe = (t) => {
    const inputs = Object.entries(data.inputs).filter(([, ids]) => ids[t] > 0);
    const kind = kindOf(t).name + (isQuery(t) ? " query" : "");
    return [kind, ...inputs.map(([name, ids]) => `${name} ${ids[t]}`)].join(", ");
  };
  // The events that a layer's buffer holds when position t is read: all before it that are not evicted yet.
  const held = (layer, t) => {
    const found = new Set();
    for (let i = 0; i < t; i++) {
      found.add(i);
      for (const gone of layer.evicted[i] || []) found.delete(gone);
    }
    return found;
  };

  // The parts.
  const moments = make("div", "moments");
  moments.setAttribute("role", "group");
  moments.setAttribute("aria-label", "Moment of training");
  data.moments.forEach((moment, number) => {
    const element = button("", "", () => change({ moment: number }));
    element.append(
      `step ${moment.step.toLocaleString("en")}`,
      make("small", "", `${moment.phase}; ${moment.reads} of ${length} read; ${moment.right} of ${moment.asked} right`),
    );
    moments.append(element);
  });

  const steps = make("div", "steps");
  const said = make("output");
  said.setAttribute("aria-live", "polite");
  const play = button("▶ play", "", () => (timer ? stop() : start()));
  const tabs = make("span", "layers");
  tabs.setAttribute("role", "group");
  tabs.setAttribute("aria-label", "Layer whose buffer is shown");
  for (let layer = 0; layer < layers; layer++) {
    tabs.append(button(`buffer of layer ${layer + 1}`, "", () => change({ layer })), " ");
  }
  steps.append(
    button("◀", "one position back", () => move(-1)),
    button("▶", "one position on", () => move(1)),
    button("next query", "", () => toNext(isQuery)),
    button("next read", "", () => toNext((t) => now().layers.some((layer) => layer.actions[t] === "1"))),
    play,
    tabs,
  );

  const keys = make("p", "keys");
  const key = (colour, text, className) => {
    const square = make("i", className);
    square.style.background = `var(--${colour})`;
    const entry = make("span");
    entry.append(square, text);
    keys.append(entry);
  };
  // The first kind is the ground that the others stand on.
  const ground = (kind) => (kind === 0 ? "ground" : "");
  data.kinds.forEach((kind, number) => key(kind.colour, kind.name, ground(number)));
  data.actions.forEach((action, digit) => key(`action${digit}`, action));
  keys.append(make("span", "", "framed: in the buffer; blue: how much of the read; ×: evicted now"));

  const cells = make("div", "cells");
  cells.tabIndex = 0;
  cells.setAttribute("role", "listbox");
  cells.setAttribute("aria-label", "Positions of the sequence: arrow keys step, Home and End jump, q finds a query");
  const boxes = data.kind.map((_, t) => {
    const cell = make("div", "cell");
    cell.id = `position-${t}`;
    cell.setAttribute("role", "option");
    cell.setAttribute("aria-label", `position ${t + 1}: ${describe(t)}`);
    const kind = make("i", "kind");
    const colour = make("i", `fill ${ground(data.kind[t])}`);
    colour.style.background = `var(--${kindOf(t).colour})`;
    kind.append(colour, make("b"));
    cell.append(kind);
    for (let layer = 0; layer < layers; layer++) cell.append(make("i", "action"));
    cell.addEventListener("click", () => change({ t }));
    cells.append(cell);
    return cell;
  });
  const inside = make("div", "inside");

  const now = () => data.moments[view.moment];
  const change = (wanted) => {
    Object.assign(view, wanted);
    view.t = Math.min(length - 1, Math.max(0, view.t));
    draw();
  };
  const move = (by) => {
    stop();
    change({ t: view.t + by });
  };
  const toNext = (test) => {
    stop();
    for (let far = 1; far <= length; far++) {
      const t = (view.t + far) % length;
      if (test(t)) return change({ t });
    }
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "▶ play";
  };
  const start = () => {
    if (view.t === length - 1) change({ t: 0 });
    play.textContent = "❚❚ pause";
    timer = setInterval(() => {
      change({ t: view.t + 1 });
      if (view.t === length - 1) stop();
    }, 250);
  };

  const verdict = (t) => {
    if (!isQuery(t)) return "";
    const answer = now().answers[t];
    const right = answer === data.targets[t];
    return `. It answers ${answer + 1}: ${right ? "right" : `wrong, it is ${data.targets[t] + 1}`}`;
  };

  const draw = () => {
    const { t } = view;
    const shown = now().layers[view.layer];
    const buffer = held(shown, t);
    const weights = new Map(shown.reads[t] || []);
    const gone = new Set(shown.evicted[t] || []);
    boxes.forEach((cell, i) => {
      cell.classList.toggle("past", i <= t);
      cell.classList.toggle("held", buffer.has(i));
      cell.classList.toggle("now", i === t);
      cell.classList.toggle("gone", gone.has(i));
      cell.setAttribute("aria-selected", String(i === t));
      cell.querySelector("b").style.opacity = Math.min(1, 1.5 * (weights.get(i) || 0));
      cell.querySelectorAll(".action").forEach((bar, layer) => {
        bar.style.background = `var(--action${now().layers[layer].actions[i]})`;
      });
    });
    cells.setAttribute("aria-activedescendant", `position-${t}`);
    [...moments.children].forEach((element, i) => (element.ariaPressed = String(i === view.moment)));
    [...tabs.children].forEach((element, i) => (element.ariaPressed = String(i === view.layer)));
    said.textContent = `Position ${t + 1} of ${length}: ${describe(t)}${verdict(t)}`;
    inside.replaceChildren(...now().layers.map((layer, number) => panel(layer, number)));
  };

  const panel = (layer, number) => {
    const { t } = view;
    const box = make("div");
    const action = Number(layer.actions[t]);
    box.dataset.action = String(action);
    box.append(make("h4", "", `Layer ${number + 1}: ${data.actions[action]}`));
    const quality = layer.quality[t];
    const hit = layer.hits[t] === "1" ? "; asks for what the contradiction index holds" : "";
    box.append(make("p", "", `q̂ = ${quality.toFixed(2)}, indifferent at ${data.threshold}${hit}`));
    const meter = make("div", "meter");
    const bar = make("i");
    bar.style.width = `${100 * quality}%`;
    const mark = make("b");
    mark.style.left = `${100 * data.threshold}%`;
    meter.append(bar, mark);
    box.append(meter);

    const buffer = held(layer, t);
    const gone = layer.evicted[t] || [];
    const fate = gone.includes(t)
      ? "It is not kept."
      : gone.length
        ? `Writing it evicts position ${gone.map((i) => i + 1).join(", ")}.`
        : "It is written.";
    const room = data.slots === null ? "without bounds" : `of ${data.slots}`;
    const stores = [...buffer].filter((i) => data.kind[i] > 0).length;
    box.append(
      make("p", "", `The buffer holds ${buffer.size} ${room} events, ${stores} of them stores or queries. ${fate}`),
    );

    const found = layer.reads[t] || [];
    const list = make("ol", "weights");
    for (const [i, weight] of found.slice(0, 6)) {
      const line = make("li");
      const track = make("div");
      const filled = make("div", "bar");
      filled.style.width = `${100 * weight}%`;
      track.append(filled, make("small", "", describe(i)));
      line.append(make("span", "", `${(100 * weight).toFixed(0)} %`), track, make("span", "", `position ${i + 1}`));
      list.append(line);
    }
    if (!layer.reads[t]) list.append(make("li", "none", "No read here."));
    else if (!found.length) list.append(make("li", "none", "A read of nothing: the buffer is empty."));
    if (found.length > 6) {
      const rest = 1 - found.slice(0, 6).reduce((sum, [, weight]) => sum + weight, 0);
      list.append(make("li", "rest", `${(100 * Math.max(0, rest)).toFixed(0)} % others`));
    }
    box.append(list);
    return box;
  };

  cells.addEventListener("keydown", (event) => {
    const across = getComputedStyle(cells).gridTemplateColumns.split(" ").length;
    const moves = {
      ArrowLeft: () => move(-1),
      ArrowRight: () => move(1),
      ArrowUp: () => move(-across),
      ArrowDown: () => move(across),
      Home: () => move(-length),
      End: () => move(length),
      q: () => toNext(isQuery),
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    moves[event.key]();
  });

  place.append(moments, steps, said, cells, keys, inside);
  draw();
})();
