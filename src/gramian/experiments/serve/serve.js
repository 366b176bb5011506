"use strict";
const facts = JSON.parse(document.getElementById("facts").textContent);
const at = (id) => document.getElementById(id);
const [channels, height, width] = facts.shape.length === 3 ? facts.shape : [0, 0, 0];
const SIMILAR = facts.similar ? 6 : 0;
const SCORES = {
  entropy: "entropy of the prediction",
  doubt: "1 − largest probability",
  latent_variance: "variance of the functions",
  mutual_information: "mutual information of class and logits",
};
let asked = 0;

function about() {
  const what = channels
    ? `${width}×${height} ${channels === 1 ? "grey" : "colour"} images; others are scaled to that`
    : `rows of ${facts.shape[0]} numbers`;
  const answer = facts.classes.length ? `${facts.classes.length} classes` : "real numbers";
  at("about").textContent = `A deep kernel machine for ${what}. It answers with ${answer}.`;
  at("image").hidden = !channels;
  at("rows").hidden = Boolean(channels);
  at("drawing").hidden = channels !== 1;
}

async function ask(path, options) {
  const mine = ++asked;
  at("status").className = "muted";
  at("status").textContent = "Asking …";
  let text;
  try {
    const reply = await fetch(`${path}?similar=${SIMILAR}`, { method: "POST", ...options });
    const body = await reply.json();
    if (mine !== asked) return;  // something newer was asked meanwhile
    if (reply.ok) {
      at("status").textContent = "";
      show(body.predictions[0]);
      return;
    }
    text = typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail);
  } catch (error) {
    text = `The server does not answer (${error.message}).`;
  }
  if (mine !== asked) return;
  at("result").hidden = true;
  at("status").className = "error";
  at("status").textContent = text;
}

function askImage(blob, name) {
  const form = new FormData();
  form.append("files", blob, name);
  ask("/predict/files", { body: form });
}

function askRow(event) {
  event.preventDefault();
  const numbers = at("row").value.split(/[\s,;]+/).filter(Boolean).map(Number);
  const body = JSON.stringify({ inputs: [numbers] });  // what is no number becomes null: refused
  ask("/predict", { body, headers: { "Content-Type": "application/json" } });
}

const percent = (p) => `${(100 * p).toFixed(1)} %`;

function element(kind, text, parent, className) {
  const made = document.createElement(kind);
  if (text !== null) made.textContent = text;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

function show(answer) {
  at("result").hidden = false;
  at("bars").replaceChildren();
  if ("class" in answer) {
    at("first").textContent =
      `${answer.class}: ${percent(answer.probability)} (± ${percent(answer.std)})`;
    const order = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 5);
    for (const [name, p] of order) {
      const row = element("div", null, at("bars"), "bar");
      element("span", name, row).title = name;
      element("i", null, element("span", null, row, "track")).style.width = `${100 * p}%`;
      element("span", percent(p), row, "number");
    }
  } else {
    const parts = answer.mean.map((m, n) => `${m.toPrecision(5)} ± ${answer.std[n].toPrecision(3)}`);
    at("first").textContent = parts.join("; ");
  }
  at("notice").hidden = !answer.unlike;
  at("notice").textContent = answer.unlike
    ? "Unlike the training data: stranger than 99 % of the test data. Do not rely on this answer."
    : "";
  at("strange").replaceChildren();
  for (const [score, share] of Object.entries(answer.strangeness ?? {})) {
    const row = element("tr", null, at("strange"));
    element("td", SCORES[score] ?? score, row);
    element("td", percent(share), row);
  }
  at("strange").parentElement.hidden = !answer.strangeness;
  at("similar").replaceChildren();
  at("alike").hidden = !answer.similar;
  for (const each of answer.similar ?? []) {
    const item = element("li", null, at("similar"));
    const what = each.class ?? each.target.map((t) => t.toPrecision(5)).join("; ");
    if (each.picture) {
      const picture = element("img", null, item);
      picture.src = each.picture;
      picture.alt = `training image ${each.number}`;
    }
    if (each.row) element("code", each.row.map((v) => v.toPrecision(4)).join(", "), item);
    element("div", `${what}, ${each.similarity.toFixed(3)}`, item);
  }
}

function chosen(file) {
  if (!file) return;
  const reader = new FileReader();
  reader.onload = () => { at("shown").src = reader.result; at("shown").hidden = false; };
  reader.readAsDataURL(file);
  askImage(file, file.name);
}

function setUpImages() {
  at("file").addEventListener("change", (event) => chosen(event.target.files[0]));
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => { event.preventDefault(); at("drop").classList.add("over"); });
  }
  document.addEventListener("dragleave", () => at("drop").classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    at("drop").classList.remove("over");
    chosen(event.dataTransfer.files[0]);
  });
}

// What is drawn is cut out, centred and made as large as the images that the model knows.
function setUpDrawing() {
  const canvas = at("canvas"), pen = canvas.getContext("2d", { willReadFrequently: true });
  let last = null;
  const clear = () => {
    pen.fillStyle = "black";
    pen.fillRect(0, 0, canvas.width, canvas.height);
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const scale = canvas.width / box.width;
    return [(event.clientX - box.x) * scale, (event.clientY - box.y) * scale];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = place(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    const here = place(event);
    pen.strokeStyle = "white";
    pen.lineWidth = 26;
    pen.lineCap = "round";
    pen.beginPath();
    pen.moveTo(...last);
    pen.lineTo(...here);
    pen.stroke();
    last = here;
  });
  canvas.addEventListener("pointerup", () => {
    last = null;
    const sent = centred(canvas, pen);
    if (sent) sent.toBlob((blob) => askImage(blob, "drawing.png"));
  });
  at("clear").addEventListener("click", clear);
  clear();
}

function centred(canvas, pen) {
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  let left = canvas.width, right = -1, top = canvas.height, bottom = -1;
  for (let y = 0; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++) {
      if (data[4 * (y * canvas.width + x)] > 64) {
        left = Math.min(left, x); right = Math.max(right, x);
        top = Math.min(top, y); bottom = Math.max(bottom, y);
      }
    }
  }
  if (right < 0) return null;
  const margin = width > 16 ? 1.4 : 1.0;  // MNIST has a border of four pixels, digits have none
  const wide = right - left + 1, high = bottom - top + 1, side = Math.max(wide, high) * margin;
  const square = document.createElement("canvas");
  square.width = square.height = 16 * Math.max(height, width);
  const inside = square.getContext("2d"), scale = square.width / side;
  inside.fillStyle = "black";
  inside.fillRect(0, 0, square.width, square.height);
  inside.drawImage(canvas, left, top, wide, high,
    (side - wide) / 2 * scale, (side - high) / 2 * scale, wide * scale, high * scale);
  return square;
}

about();
if (channels) setUpImages();
if (channels === 1) setUpDrawing();
at("rows").addEventListener("submit", askRow);
