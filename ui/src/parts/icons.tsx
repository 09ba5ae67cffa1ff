// The few drawings of the page: 16×16, one stroke width, the colour of the text around them.
import type { ComponentChildren } from "preact";

function Icon({ children }: { children: ComponentChildren }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.5"
      stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">{children}</svg>
  );
}

export const Left = () => <Icon><path d="M10 3.5 5.5 8l4.5 4.5" /></Icon>;
export const Right = () => <Icon><path d="M6 3.5 10.5 8 6 12.5" /></Icon>;
export const Down = () => <Icon><path d="M3.5 6 8 10.5 12.5 6" /></Icon>;
export const ZoomOut = () => <Icon><circle cx="7" cy="7" r="4.5" /><path d="m10.5 10.5 3.5 3.5M5 7h4" /></Icon>;
export const Refresh = () => <Icon><path d="M13.5 8a5.5 5.5 0 1 1-1.7-4M13.5 1.5V5H10" /></Icon>;
export const Close = () => <Icon><path d="m4 4 8 8M12 4l-8 8" /></Icon>;
export const Plus = () => <Icon><path d="M8 3v10M3 8h10" /></Icon>;
export const Search = () => <Icon><circle cx="7" cy="7" r="4.5" /><path d="m10.5 10.5 3.5 3.5" /></Icon>;
export const Clock = () => <Icon><circle cx="8" cy="8" r="6" /><path d="M8 4.5V8l2.5 1.5" /></Icon>;
export const List = () => <Icon><path d="M5.5 4H14M5.5 8H14M5.5 12H14M2 4h.01M2 8h.01M2 12h.01" /></Icon>;
export const Sun = () => <Icon><circle cx="8" cy="8" r="3" /><path d="M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1" /></Icon>;
export const Moon = () => <Icon><path d="M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7Z" /></Icon>;
export const Auto = () => <Icon><circle cx="8" cy="8" r="6" /><path d="M8 2a6 6 0 0 1 0 12Z" fill="currentColor" stroke="none" /></Icon>;
export const Copy = () => <Icon><rect x="5.5" y="5.5" width="8" height="8" rx="1.5" /><path d="M10.5 3.5v-1h-8v8h1" /></Icon>;
export const Check = () => <Icon><path d="m3 8.5 3.5 3.5L13 4.5" /></Icon>;
export const Play = () => <Icon><path d="M5 3.5v9l7-4.5Z" fill="currentColor" /></Icon>;
export const More = () => <Icon><path d="M3.5 8h.01M8 8h.01M12.5 8h.01" stroke-width="2.5" /></Icon>;
export const Load = () => <Icon><path d="M8 2.5v8M4.5 7.5 8 11l3.5-3.5M3 13.5h10" /></Icon>;
export const Stop = () => <Icon><rect x="4.5" y="4.5" width="7" height="7" rx="1" fill="currentColor" /></Icon>;

/** The mark: a stalk of fennel with the fire in it. */
export const Mark = () => (
  <svg class="mark" viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
    <path d="M16 30V15" stroke="var(--leaf)" stroke-width="4" stroke-linecap="round" />
    <path d="M16 25c-5.5 0-8.5-2-9.5-6.5 5.5-.5 8.5 1.5 9.5 6.5Z" fill="var(--leaf-soft)" />
    <path d="M16 2c1 4 6.5 6 6.5 11.5a6.5 6.5 0 0 1-13 0c0-3.3 2.2-4.3 2.7-7 2 1 2.8 2.3 3.3 3.5C17 8 17 5 16 2Z" fill="var(--flame)" />
  </svg>
);
