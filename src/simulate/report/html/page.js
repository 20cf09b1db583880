// Two buttons, made here because without a script they would do nothing. All else in the page is CSS.
for (const [name, shown] of [["all", true], ["none", false]]) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.onclick = () => { for (const box of document.querySelectorAll(".legend input")) box.checked = shown; };
  document.querySelector(".legend")?.append(button);
}
