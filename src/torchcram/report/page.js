(() => {
  "use strict";
  document.documentElement.classList.add("js");

  // Light or dark: as the system has it, until a reader chooses. A page from disk may not be allowed to remember.
  const root = document.documentElement;
  const asked = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = document.createElement("button");
  theme.className = "theme";
  theme.type = "button";
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : asked.matches);
  const name = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Show this page in ${isDark() ? "light" : "dark"} colours`);
  };
  try {
    const kept = localStorage.getItem("torchcram-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch {}
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("torchcram-theme", root.dataset.theme);
    } catch {}
    name();
  });
  asked.addEventListener("change", name);
  name();
  document.body.prepend(theme);

  // Read-outs: the evaluation nearest to the pointer, or by arrow keys one after the other.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  document.body.append(tip);
  for (const chart of document.querySelectorAll("svg[data-hover]")) {
    const points = JSON.parse(chart.dataset.hover);
    const guide = chart.querySelector(".guide");
    let chosen = 0;
    const show = (index, height) => {
      const box = chart.getBoundingClientRect();
      const scale = box.width / chart.viewBox.baseVal.width;
      const [at, text] = points[index];
      chosen = index;
      guide.setAttribute("transform", `translate(${at} 0)`);
      guide.style.display = "inline";
      tip.textContent = text;
      tip.style.display = "block";
      const left = box.left + at * scale + 12;
      const fits = left + tip.offsetWidth < document.documentElement.clientWidth;
      tip.style.left = `${window.scrollX + (fits ? left : Math.max(0, left - tip.offsetWidth - 24))}px`;
      tip.style.top = `${window.scrollY + height - tip.offsetHeight - 12}px`;
    };
    const nearest = (event) => {
      if (!points.length) return;
      const box = chart.getBoundingClientRect();
      const x = ((event.clientX - box.left) * chart.viewBox.baseVal.width) / box.width;
      const distance = (index) => Math.abs(points[index][0] - x);
      show(
        points.reduce((best, _, index) => (distance(index) < distance(best) ? index : best), 0),
        event.clientY,
      );
    };
    const step = (event) => {
      const moves = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: points.length - 1 };
      if (!points.length || !(event.key in moves)) return;
      event.preventDefault();
      const box = chart.getBoundingClientRect();
      show(Math.min(points.length - 1, Math.max(0, moves[event.key])), box.top + box.height / 2);
    };
    const hide = () => {
      guide.style.display = tip.style.display = "none";
    };
    chart.addEventListener("pointermove", nearest);
    chart.addEventListener("pointerdown", nearest);
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("keydown", step);
    chart.addEventListener("blur", hide);
  }

  // The sequence: redraw each strip's actions for the evaluation chosen (as `cells` in sequence.py draws them).
  for (const live of document.querySelectorAll(".live")) {
    const data = JSON.parse(live.querySelector("script").textContent);
    const slider = live.querySelector("input");
    const play = live.querySelector(".play");
    const strips = [...live.querySelectorAll(".strip svg")];
    let timer = 0;
    const draw = () => {
      const moment = Number(slider.value);
      live.querySelector(".words").textContent = data.words[moment];
      strips.forEach((strip, number) => {
        const paths = {};
        data.actions[moment].forEach((row, layer) => {
          const digits = row.slice(number * data.line, (number + 1) * data.line);
          for (let begin = 0, end = 0; begin < digits.length; begin = end) {
            while (end < digits.length && digits[end] === digits[begin]) end++;
            const size = end - begin;
            paths[digits[begin]] =
              (paths[digits[begin]] || "") + `M${begin} ${1 + data.gap + layer}h${size}v1h-${size}z`;
          }
        });
        for (const path of strip.querySelectorAll("[data-action]")) {
          path.setAttribute("d", paths[path.dataset.action] || "");
        }
      });
      for (const button of live.querySelectorAll("[data-to]")) {
        button.setAttribute("aria-pressed", String(button.dataset.to === slider.value));
      }
    };
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      play.textContent = "▶";
    };
    slider.addEventListener("input", () => {
      stop();
      draw();
    });
    for (const button of live.querySelectorAll("[data-to]")) {
      button.addEventListener("click", () => {
        stop();
        slider.value = button.dataset.to;
        draw();
      });
    }
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (slider.value === slider.max) slider.value = slider.min;
      draw();
      play.textContent = "❚❚";
      timer = setInterval(() => {
        slider.value = String(Number(slider.value) + 1);
        draw();
        if (slider.value === slider.max) stop();
      }, 350);
    });
    draw();
  }

  // Layers of the distributions of q: one at a time on the screen.
  for (const tabs of document.querySelectorAll(".tabs")) {
    const panels = [...document.querySelectorAll(".layer")];
    const choose = (wanted) => {
      panels.forEach((panel) => panel.classList.toggle("away", panel.dataset.layer !== wanted));
      for (const button of tabs.children) button.setAttribute("aria-pressed", String(button.value === wanted));
    };
    for (const button of tabs.children) button.addEventListener("click", () => choose(button.value));
    choose(tabs.dataset.first);
  }
})();
