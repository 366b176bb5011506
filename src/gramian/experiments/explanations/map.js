"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("map"), pen = canvas.getContext("2d");
const hidden = new Set();
let layer = 0, shown = data.layers[0].places, timer = 0;

function spread(places) {
  let most = 1e-9;
  for (const [x, y] of places) most = Math.max(most, Math.abs(x), Math.abs(y));
  return 0.46 * canvas.width / most;
}

function at(place, scale) {
  return [canvas.width / 2 + scale * place[0], canvas.height / 2 - scale * place[1]];
}

function draw(scale) {
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.globalAlpha = 0.75;
  shown.forEach((place, n) => {
    if (hidden.has(data.labels[n])) return;
    const [x, y] = at(place, scale);
    pen.fillStyle = data.colours[data.labels[n]];
    pen.beginPath();
    pen.arc(x, y, 5, 0, 7);
    pen.fill();
  });
}

function choose(next) {
  layer = Math.max(0, Math.min(data.layers.length - 1, next));
  const goal = data.layers[layer].places, from = shown;
  const a = spread(from), b = spread(goal), start = performance.now();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  cancelAnimationFrame(timer);
  function frame(now) {
    const t = still ? 1 : Math.min(1, (now - start) / 700), s = t * t * (3 - 2 * t);
    shown = goal.map(([x, y], n) => [from[n][0] + s * (x - from[n][0]), from[n][1] + s * (y - from[n][1])]);
    draw(a + s * (b - a));
    if (t < 1) timer = requestAnimationFrame(frame);
  }
  timer = requestAnimationFrame(frame);
  const facts = data.layers[layer];
  document.getElementById("facts").textContent =
    `${facts.name}: ${(100 * facts.agreement).toFixed(0)} % of the ten nearest neighbours have the same class; ` +
    `two dimensions show ${(100 * facts.explained).toFixed(0)} % of the variance.`;
  document.querySelectorAll("#layers button").forEach((button, n) => button.setAttribute("aria-current", n === layer));
}

data.layers.forEach((each, n) => {
  const button = document.createElement("button");
  button.textContent = each.name;
  button.onclick = () => choose(n);
  document.getElementById("layers").append(button);
});

data.classes.forEach((name, n) => {
  const item = document.createElement("li"), button = document.createElement("button"), dot = document.createElement("span");
  dot.className = "dot";
  dot.style.background = data.colours[n];
  button.append(dot, name);
  button.setAttribute("aria-pressed", "true");
  button.onclick = () => {
    if (!hidden.delete(n)) hidden.add(n);
    button.setAttribute("aria-pressed", String(!hidden.has(n)));
    draw(spread(data.layers[layer].places));
  };
  item.append(button);
  document.getElementById("legend").append(item);
});

canvas.addEventListener("pointermove", event => {
  const box = canvas.getBoundingClientRect(), scale = spread(shown);
  const x = (event.clientX - box.left) * canvas.width / box.width, y = (event.clientY - box.top) * canvas.height / box.height;
  let best = -1, least = 400;
  shown.forEach((place, n) => {
    if (hidden.has(data.labels[n])) return;
    const [px, py] = at(place, scale), d = (px - x) ** 2 + (py - y) ** 2;
    if (d < least) { least = d; best = n; }
  });
  const hover = document.getElementById("hover");
  hover.replaceChildren();
  if (best < 0) return;
  const text = document.createElement("p");
  text.textContent = data.classes[data.labels[best]];
  hover.append(text);
  const factor = Math.max(1, Math.round(128 / Math.max(...data.size)));
  const [width, height] = data.size.map(pixels => pixels * factor);
  if (!width) return;
  const thumb = document.createElement("div");
  const row = Math.floor(best / data.columns), column = best % data.columns;
  thumb.className = "thumb";
  thumb.style.cssText = `width:${width}px;height:${height}px;image-rendering:pixelated;` +
    `background-image:url(${SPRITE});background-size:${data.columns * width}px auto;` +
    `background-position:-${column * width}px -${row * height}px`;
  hover.append(thumb);
});

addEventListener("keydown", event => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) choose(layer + step);
});

choose(0);
