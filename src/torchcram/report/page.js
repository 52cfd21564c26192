(() => {
  "use strict";
  document.documentElement.classList.add("js");

  // Read-outs: the evaluation nearest to the pointer.
  const tip = document.createElement("div");
  tip.className = "tip";
  document.body.append(tip);
  for (const chart of document.querySelectorAll("svg[data-hover]")) {
    const points = JSON.parse(chart.dataset.hover);
    const guide = chart.querySelector(".guide");
    const show = (event) => {
      if (!points.length) return;
      const box = chart.getBoundingClientRect();
      const scale = box.width / chart.viewBox.baseVal.width;
      const x = (event.clientX - box.left) / scale;
      const [at, text] = points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
      guide.setAttribute("transform", `translate(${at} 0)`);
      guide.style.display = "inline";
      tip.textContent = text;
      tip.style.display = "block";
      const left = box.left + at * scale + 12;
      const fits = left + tip.offsetWidth < document.documentElement.clientWidth;
      tip.style.left = `${window.scrollX + (fits ? left : left - tip.offsetWidth - 24)}px`;
      tip.style.top = `${window.scrollY + event.clientY - tip.offsetHeight - 12}px`;
    };
    const hide = () => {
      guide.style.display = tip.style.display = "none";
    };
    chart.addEventListener("pointermove", show);
    chart.addEventListener("pointerdown", show);
    chart.addEventListener("pointerleave", hide);
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
