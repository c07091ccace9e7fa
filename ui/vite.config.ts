import { defineConfig } from "vite";

// Airflow puts its own React on globalThis and import()s this file; nothing of React is bundled.
export default defineConfig({
  publicDir: "public",
  define: { "process.env.NODE_ENV": '"production"' },
  build: {
    outDir: "../airflow_provider_chasqui/plugins/static",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    lib: {
      entry: "src/main.tsx",
      name: "ChasquiBundle",
      formats: ["iife"],
      fileName: () => "chasqui.js",
    },
    rollupOptions: {
      external: ["react", "react/jsx-runtime", "react-router-dom"],
      output: {
        globals: {
          react: "React",
          "react/jsx-runtime": "ReactJSXRuntime",
          "react-router-dom": "ReactRouterDOM",
        },
      },
    },
  },
});
